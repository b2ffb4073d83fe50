"""Canonical configs: a model's config without what changes no number of its forward pass.

Two models are the same where their canonical configs are equal. Layers are in one order of scans,
however they were stacked.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs

from axcore.config import (
    REQUIRED,
    diff_config,
    evolve,
    field_names,
    format_diff,
    is_config,
    map_config,
    replace_config,
    suggest_names,
)
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.layers import (
    DotProductAttention,
    Pipeline,
    ScannedLayers,
    Sequence,
    Stack,
)

if TYPE_CHECKING:
    from axcore.interop.weight_edits import WeightEdit

TRAINING_ONLY = frozenset(
    {
        "balance_loss",
        "balance_over",
        "dot",
        "dropout",
        "dtypes",
        "position_init",
        "remat",
        "unroll",
        "weight_init",
        "z_loss",
    }
)
"""Fields that say how a model is trained, or in which precision it computes."""


_FILLED = frozenset({"dim", "head_dim", "num_kv_heads", "vocab_size"})
"""Fields that parents fill where they have no default; values set there mean the same."""


# Kept in `__dict__`, past the frozen config's `__setattr__`;
# no field, so it is neither compared nor rendered.
_CANONICAL = "__config_canonical__"


def canonical(cfg: Any) -> Any:
    """Return a model's config without what changes no number of its forward pass.

    Fields of `TRAINING_ONLY` have their defaults, and layers are scanned in one order of scans.
    """
    # Kept with the config, a value that never changes: to read a model asks for it several times.
    found = cfg.__dict__.get(_CANONICAL)
    if found is None:
        found = _canonical(cfg)
        for one in (cfg, found):
            object.__setattr__(one, _CANONICAL, found)
    return found


def _canonical(cfg: Any) -> Any:
    # Stages and unrolled layers compute what a scan does, so they are one scan for a comparison.
    for stack in (Stack, Pipeline):
        cfg = replace_config(cfg, stack, ScannedLayers.Config(), missing_ok=True)
    plain = _with_own_sizes(map_config(cfg, _plain), cfg, frozenset())
    if "published" in field_names(plain):
        plain = evolve(plain, published=None)
    return map_config(plain, _with_arranged_stack)


def _with_own_sizes(plain: Any, cfg: Any, filled: frozenset[str]) -> Any:
    """Return a plain config with the sizes again that no parent fills, as nothing above has them.

    Args:
        plain: A config in which `_plain` cleared all fields of `_FILLED`.
        cfg: The same config before that.
        filled: The fields that something above it has.
    """
    names = field_names(cfg)
    changes = {name: getattr(cfg, name) for name in names if name in _FILLED - filled}
    filled = filled | (_FILLED & set(names))
    own = getattr(cfg, "sized_parts", ())
    for name in names:
        child = getattr(plain, name)
        # Below a model that has both, as all language models do, only layers are left, which fill
        # the others themselves; and what says that it has sizes of its own.
        if is_config(child) and (name in own or not {"dim", "vocab_size"} <= filled):
            above = frozenset[str]() if name in own else filled
            changes[name] = _with_own_sizes(child, getattr(cfg, name), above)
    return evolve(plain, **changes) if changes else plain


def _with_arranged_stack(node: Any) -> Any:
    if "stack" not in field_names(node) or not is_config(node.stack):
        return node
    return evolve(node, stack=arranged(layers_of(node.stack)))


def base_config(cfg: Any) -> Any:
    """Return a config without adapters: the base instead of every layer that adapts one.

    A new adapter changes no number, so that weights of the one fit the other.
    """
    return map_config(cfg, _base)


def _base(node: Any) -> Any:
    base = getattr(node, "base", None)
    return base if is_config(base) else node


def _plain(node: Any) -> Any:
    defaults = {field.name: field.default for field in attrs.fields(type(node))}
    # Only where nothing else than the parent's value
    # could be there; a field with a default is a choice.
    filled = {name for name in _FILLED & defaults.keys() if defaults[name] is REQUIRED}
    if isinstance(node, DotProductAttention.Config):
        filled.add("num_heads")
        node = evolve(node, window=_seen(node))
    changed = filled | (TRAINING_ONLY & defaults.keys())
    return evolve(node, **{name: defaults[name] for name in changed})


def _seen(core: Any) -> Any:
    """Return the window; what causal attention sees to its right says nothing."""
    return (core.window[0], 0) if core.window and core.is_causal else core.window


def layers_of(stack: Any) -> list[Any]:
    """Return the configs of a stack's layers, in the order in which tokens pass them."""
    if isinstance(stack, Sequence.Config):
        return [layer for part in stack.layers for layer in layers_of(part)]
    if isinstance(stack, ScannedLayers.Config | Stack.Config):
        return layers_of(stack.layer) * stack.num_layers
    return [stack]


def arranged(layers: list[Any]) -> Any:
    """Return the config of a stack of these layers, scanned.

    Layers take turns, or equal ones follow each other, whichever has fewer layers to compile.
    """
    kinds = _numbered(layers)
    period = next(p for p in range(1, len(kinds) + 1) if kinds[p:] == kinds[:-p])
    num_turns = len(kinds) // period
    left = layers[num_turns * period :]
    # As runs at a tie: they are compiled as often, and read more simply.
    if _num_runs(kinds) <= period + _num_runs(kinds[num_turns * period :]):
        return _in_turn(_in_runs(layers))
    turn = Sequence.Config(layers=tuple(layers[:period]))
    return _in_turn([ScannedLayers.Config(num_layers=num_turns, layer=turn), *_in_runs(left)])


def _numbered(layers: list[Any]) -> list[int]:
    """Return a number for each layer, the same for equal ones."""
    return [layers.index(layer) for layer in layers]


def _num_runs(kinds: list[int]) -> int:
    return len(list(groupby(kinds)))


def _in_runs(layers: list[Any]) -> list[Any]:
    runs = [list(run) for _, run in groupby(layers)]
    return [ScannedLayers.Config(num_layers=len(run), layer=run[0]) for run in runs]


def _in_turn(stacks: list[Any]) -> Any:
    return stacks[0] if len(stacks) == 1 else Sequence.Config(layers=tuple(stacks))


def check_same_model(
    models: tuple[Any, Any],
    edits: SequenceABC["WeightEdit"],
    *,
    may_differ: SequenceABC[str],
    normal: Callable[[Any], Any],
    where: str,
) -> None:
    """Check that two models' configs agree in all that changes numbers.

    Args:
        models: The config of the source's model, and of the one that begins with its weights.
        edits: What is done to the weights; what these explain may differ.
        may_differ: Globs of what else may differ.
        normal: Brings a config into a form that all have which make equal numbers.
        where: The source, for the error.

    Raises:
        ConfigError: Showing what differs; or a glob of `may_differ` has nothing to allow.
    """
    source, target = (canonical(base_config(cfg)) for cfg in models)
    # Backwards, as each edit was done to what those before it had made.
    for edit in reversed(edits):
        target = edit.undone(target, source)
    changes = diff_config(normal(source), normal(target))
    for glob in may_differ:
        if not any(_allows(glob, change.path) for change in changes):
            raise ConfigError(
                f"{glob!r} allows nothing: the models do not differ there",
                where="init_from.may_differ",
                hint=suggest_names(glob, [change.path for change in changes]),
            )
    allowed = (*may_differ, *(glob for edit in edits for glob in edit.explains))
    left = tuple(one for one in changes if not any(_allows(glob, one.path) for glob in allowed))
    if left:
        raise ConfigError(
            f"the model is not the one that the weights are of (-: that one, +: this one)\n"
            f"{format_diff(left)}".rstrip(),
            where=where,
            hint="change the model's config, read other weights, or name in init_from.may_differ "
            "what differs on purpose",
        )


def _allows(glob: str, path: str) -> bool:
    """Whether a glob matches a path, or what holds it."""
    pattern, steps = parse_pattern(glob), parse_pattern(path)
    return any(matches(pattern, steps[:end]) for end in range(1, len(steps) + 1))
