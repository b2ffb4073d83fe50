"""Parts of config maps and weight maps that families of this plugin share."""

from typing import Any

from axcore.interop import (
    Chain,
    Choice,
    Concatenate,
    ConfigEntry,
    Field,
    Fields,
    Rule,
    Transpose,
    WeightMap,
    same,
)
from axcore.models import TiedHead, UntiedHead

MLP_BIAS = Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False)


class NoPadding(ConfigEntry):
    """`pad_token_id`, no token in exports; absent it is one that small vocabularies lack."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Returns the config: what padding is changes no number."""
        fields.take("pad_token_id", None)
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Returns the field."""
        return {"pad_token_id": None}


def tied_by(path: str = "head", *, default: bool = False) -> Choice:
    """Returns the entry that says whether the head at a path is the embedding."""
    heads = {False: UntiedHead.Config(), True: TiedHead.Config()}
    return Choice("tie_word_embeddings", path, heads, default)


def affine(ours: str, theirs: str) -> WeightMap:
    """Returns the rules of a weight and a bias that are the same on both sides."""
    return tuple(same(f"{ours}.{name}", f"{theirs}.{name}") for name in ("weight", "bias"))


def fused(ours: tuple[str, ...], theirs: str, sizes: tuple[int, ...]) -> Rule:
    """Returns the rule of linear layers that are one of theirs, of these widths."""
    weights = tuple(f"{name}.weight" for name in ours)
    return Rule(weights, (f"{theirs}.weight",), Chain(Transpose(), Concatenate(sizes)))
