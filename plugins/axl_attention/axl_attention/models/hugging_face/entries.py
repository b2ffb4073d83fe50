"""Parts of config maps and weight maps that families of this plugin share."""

from typing import Any

from axcore.interop import (
    Chain,
    Choice,
    Concatenate,
    ConfigEntry,
    Field,
    Fields,
    JoinAxes,
    Rule,
    SplitAxis,
    Transform,
    Transpose,
    WeightMap,
    interleaved,
    same,
)
from axcore.models import TiedHead, UntiedHead

MLP_BIAS = Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False)


class NoPadding(ConfigEntry):
    """`pad_token_id`: no token where none was read; small vocabularies lack the default one."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config: what padding is changes no number, so that the field stays unread."""
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {"pad_token_id": None}


def tied_by(path: str = "head", *, default: bool = False) -> Choice:
    """Return the entry that says whether the head at a path is the embedding."""
    heads = {False: UntiedHead.Config(), True: TiedHead.Config()}
    return Choice("tie_word_embeddings", path, heads, default)


def affine(ours: str, theirs: str) -> WeightMap:
    """Return the rules of a weight and a bias that are the same on both sides."""
    return tuple(same(f"{ours}.{name}", f"{theirs}.{name}") for name in ("weight", "bias"))


def fused(ours: tuple[str, ...], theirs: str, sizes: tuple[int, ...]) -> Rule:
    """Return the rule of linear layers that are one of theirs, of these widths."""
    weights = tuple(f"{name}.weight" for name in ours)
    return Rule(weights, (f"{theirs}.weight",), Chain(Transpose(), Concatenate(sizes)))


def interleaved_projection(part: str, num_heads: int, *, rotated: int, rest: int = 0) -> WeightMap:
    """Return the rules of queries or keys whose rotary rows are neighbouring pairs in theirs.

    Args:
        part: Of ours.
        num_heads: Heads of it.
        rotated: Rows of a head that positions rotate.
        rest: Rows behind them.
    """
    pairs = interleaved(rotated, rest=rest, axis=1)
    rows = Chain(SplitAxis(num_heads), pairs, JoinAxes(num_heads))
    theirs = f"{part}_proj"
    return (
        Rule((f"{part}.weight",), (f"{theirs}.weight",), Chain(Transpose(), rows)),
        Rule((f"{part}.bias",), (f"{theirs}.bias",), rows),
    )


def all_experts(
    path: str, names: tuple[str, ...], theirs: str, transform: Transform, *, count: int
) -> Rule:
    """Return the rule of arrays of every expert that are one of theirs.

    Args:
        path: Of our experts.
        names: Of one expert's arrays; those of the first come before those of the second.
        theirs: The name of theirs.
        transform: From the arrays of all experts to theirs.
        count: How many experts there are.
    """
    ours = tuple(f"{path}.{i}.{name}" for name in names for i in range(count))
    return Rule(ours, (theirs,), transform)
