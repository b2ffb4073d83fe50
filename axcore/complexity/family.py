"""Families of models to measure on: N models times M variants of each, no two of them alike."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.data import Data
from axcore.layers import (
    FeedForward,
    LayerNorm,
    NoPosition,
    PlainFeedForward,
    PostNorm,
    PreNorm,
    RMSNorm,
    RoPE,
    ScannedLayers,
    Stack,
)
from axcore.models import TiedHead, UntiedHead, transformer
from axcore.module import DTypes
from axcore.trainer import Trainer

Edit = Callable[[Any], Any]

LARGEST = 16
"""The most models, and the most variants of each."""


def model_family(models: int, variants: int) -> Iterator[tuple[str, Any]]:
    """Yield names and training configs of `models * variants` different models at toy size.

    Models differ in how layers are stacked and joined, in their head and in their key heads;
    variants in norm, feed-forward, activation and positions.

    Raises:
        ValueError: More are asked for than there are.
    """
    if not (1 <= models <= LARGEST and 1 <= variants <= LARGEST):
        raise ValueError(f"there are 1 to {LARGEST} models, and as many variants of each")
    for (one, to_model), (other, to_variant) in itertools.product(
        _combinations(_MODEL_AXES)[:models], _combinations(_VARIANT_AXES)[:variants]
    ):
        yield f"{one} {other}", to_variant(to_model(_plain()))


def _plain() -> Any:
    model = transformer(
        vocab_size=64, dim=32, num_layers=2, num_heads=2, num_kv_heads=2, hidden_dim=32
    )
    return Trainer.Config(
        model=evolve(model, dtypes=DTypes(compute="bfloat16")),
        data=Data.Config(seq_len=16, batch_size=2),
        max_steps=2,
    )


def _combinations(axes: tuple[dict[str, Edit], ...]) -> list[tuple[str, Edit]]:
    """Return a choice from each of four axes of two, 16 in all.

    The first four have each value of each axis, so a small family is as varied as it can be.
    """
    chosen = list(itertools.product(*(axis.items() for axis in axes)))
    order = sorted(range(LARGEST), key=lambda index: min(index, LARGEST - 1 - index) % 5)
    return [
        (" ".join(name for name, _ in one), _one_after_another([edit for _, edit in one]))
        for one in (chosen[index] for index in order)
    ]


def _one_after_another(edits: list[Edit]) -> Edit:
    def edited(cfg: Any) -> Any:
        for edit in edits:
            cfg = edit(cfg)
        return cfg

    return edited


def _unchanged(cfg: Any) -> Any:
    return cfg


def _setting(path: str, value: Any) -> Edit:
    return lambda cfg: update_config(cfg, {path: value})


def _replacing(old: Any, new: Any) -> Edit:
    return lambda cfg: replace_config(cfg, old, new)


_MODEL_AXES: tuple[dict[str, Edit], ...] = (
    {"scanned": _unchanged, "unrolled": _replacing(ScannedLayers, Stack.Config())},
    {"pre-norm": _unchanged, "post-norm": _replacing(PreNorm, PostNorm.Config())},
    {"untied": _unchanged, "tied": _replacing(UntiedHead, TiedHead.Config())},
    {"all-heads": _unchanged, "grouped": _setting("**.num_kv_heads", 1)},
)

_VARIANT_AXES: tuple[dict[str, Edit], ...] = (
    {"rms": _unchanged, "layer": _replacing(RMSNorm, LayerNorm.Config())},
    {"gated": _unchanged, "plain": _replacing(FeedForward, PlainFeedForward.Config())},
    {
        "gelu": _setting("**.feed_forward.activation", "gelu"),
        "silu": _setting("**.feed_forward.activation", "silu"),
    },
    {"rotary": _unchanged, "no-position": _replacing(RoPE, NoPosition.Config())},
)
