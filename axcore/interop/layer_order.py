"""The order of a model's layers, however they are stacked, and the shortest stack of them."""

from itertools import groupby
from typing import Any

from axcore.layers import ScannedLayers, Sequence, Stack


def layers_of(stack: Any) -> list[Any]:
    """Returns the configs of a stack's layers, in the order in which tokens pass them."""
    if isinstance(stack, Sequence.Config):
        return [layer for part in stack.layers for layer in layers_of(part)]
    if isinstance(stack, ScannedLayers.Config | Stack.Config):
        return layers_of(stack.layer) * stack.num_layers
    return [stack]


def arranged(layers: list[Any]) -> Any:
    """Returns the config of a stack of these layers, scanned.

    Layers take turns, or equal ones follow each other, whichever has fewer layers to compile.
    """
    kinds = _numbered(layers)
    period = next(p for p in range(1, len(kinds) + 1) if kinds[p:] == kinds[:-p])
    num_turns = len(kinds) // period
    left = layers[num_turns * period :]
    if _num_runs(kinds) <= period + _num_runs(kinds[num_turns * period :]):
        return _in_turn(_in_runs(layers))
    turn = Sequence.Config(layers=tuple(layers[:period]))
    return _in_turn([ScannedLayers.Config(num_layers=num_turns, layer=turn), *_in_runs(left)])


def _numbered(layers: list[Any]) -> list[int]:
    """Returns a number for each layer, the same for equal ones."""
    return [layers.index(layer) for layer in layers]


def _num_runs(kinds: list[int]) -> int:
    return len(list(groupby(kinds)))


def _in_runs(layers: list[Any]) -> list[Any]:
    runs = [list(run) for _, run in groupby(layers)]
    return [ScannedLayers.Config(num_layers=len(run), layer=run[0]) for run in runs]


def _in_turn(stacks: list[Any]) -> Any:
    return stacks[0] if len(stacks) == 1 else Sequence.Config(layers=tuple(stacks))
