"""Entries of config maps and rules of weight maps that families of this plugin share."""

from collections.abc import Callable
from typing import Any

import attrs

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    FEED_FORWARD,
    Chain,
    Choice,
    Concatenate,
    ConfigEntry,
    Field,
    Fields,
    JoinAxes,
    LayerKinds,
    RopeFields,
    Rule,
    SplitAxis,
    Transform,
    Transpose,
    WeightMap,
    below,
    common_value,
    interleaved,
    linear,
    same,
)
from axcore.layers import Attention, GroupLimit, MoE, PreNorm, TransformerLayer
from axcore.models import TiedHead, UntiedHead
from axl_attention.norms import NormedLinear, with_head_norms
from axl_attention.positions import PartialRotary

MLP_BIAS = Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False)


class NoPadding(ConfigEntry):
    """`pad_token_id`: no token where none was read; small vocabularies lack the default one."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config: what padding is changes no number, so that the field stays unread."""
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {"pad_token_id": None}


def head_dim_of(cfg: Any) -> int:
    """Return the size of a head."""
    given = common_value(cfg, "**.attention.head_dim")
    return int(given or cfg.dim // common_value(cfg, "**.attention.num_heads"))


def tied_by(path: str = "head", *, default: bool = False) -> Choice:
    """Return the entry that says whether the head at a path is the embedding."""
    heads = {False: UntiedHead.Config(), True: TiedHead.Config()}
    return Choice("tie_word_embeddings", path, heads, default)


def affine(axcore: str, hf: str) -> WeightMap:
    """Return the rules of a weight and a bias that are the same on both sides."""
    return tuple(same(f"{axcore}.{name}", f"{hf}.{name}") for name in ("weight", "bias"))


def in_turn(old: Any) -> TransformerLayer.Config:
    """Return the layer whose two branches follow each other, of one in which they are parallel."""
    return TransformerLayer.Config(
        attention=old.attention,
        feed_forward=old.feed_forward,
        residual=PreNorm.Config(norm=old.norm, dropout=old.dropout),
    )


@attrs.frozen
class InnerSize(ConfigEntry):
    """The width of feed-forwards, which is four times the model's where it is null or absent.

    Args:
        name: Of the field.
    """

    name: str

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the size."""
        size = fields.take(self.name, None) or 4 * cfg.dim
        return update_config(cfg, {"**.hidden_dim": size})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {self.name: common_value(cfg, "**.hidden_dim")}


@attrs.frozen
class Switch(ConfigEntry):
    """A field that says whether parts of a model are other ones, and the fields of what they are.

    Args:
        name: Of the field.
        kind: The class whose presence means that it is on.
        on: From a model in which it is off to one in which it is on.
        off: Its inverse.
        entries: Of a model in which it is off.
        default: What the field's absence means.
    """

    name: str
    kind: type
    on: Callable[[Any], Any]
    off: Callable[[Any], Any]
    entries: tuple[ConfigEntry, ...] = ()
    default: bool = False

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with what the fields say."""
        for entry in self.entries:
            cfg = entry.read(cfg, fields)
        return self.on(cfg) if fields.take(self.name, self.default) else cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        is_on = bool(find_config(cfg, self.kind))
        cfg = self.off(cfg) if is_on else cfg
        values: dict[str, Any] = {self.name: is_on}
        for entry in self.entries:
            values |= entry.write(cfg)
        return values


def head_norms(name: str, *entries: ConfigEntry) -> Switch:
    """Return the entry of whether each head of queries and keys is normalised.

    Args:
        name: Of the field.
        *entries: Of the projections.
    """

    def on(cfg: Any) -> Any:
        return replace_config(cfg, Attention, with_head_norms(head_dim_of(cfg)))

    def off(cfg: Any) -> Any:
        return replace_config(
            cfg, Attention, lambda old: evolve(old, linear=old.linear.linear, value_linear=None)
        )

    return Switch(name, NormedLinear, on, off, entries)


def layers_of(layers: str, *layer: Rule, embedding: str, norm: str) -> WeightMap:
    """Return the rules of a model with an embedding, layers, a norm and perhaps a head.

    Args:
        layers: What Hugging Face's names of layers begin with.
        *layer: The rules of one layer.
        embedding: Its name.
        norm: Its name.
    """
    return (
        same("decoder.embedding.weight", f"{embedding}.weight"),
        *below("decoder.stack.layer.{layer}", f"{layers}.{{layer}}", layer),
        *affine("decoder.norm", norm),
        *affine("head", "lm_head"),
    )


def fused(axcore: tuple[str, ...], hf: str, sizes: tuple[int, ...]) -> Rule:
    """Return the rule of linear layers that Hugging Face fuses into one, of these widths."""
    weights = tuple(f"{name}.weight" for name in axcore)
    return Rule(weights, (f"{hf}.weight",), Chain(Transpose(), Concatenate(sizes)))


def by_head(num_heads: int, *sizes: int) -> Transform:
    """Return what puts rows of these sizes in each head next to each other."""
    return Chain(SplitAxis(num_heads), Concatenate(sizes, axis=1), JoinAxes(num_heads))


def fused_rows(parts: tuple[str, ...], hf: str, rows: Transform) -> WeightMap:
    """Return the rules of linear layers that Hugging Face fuses, given what fuses their rows."""
    weights, biases = (tuple(f"{part}.{name}" for part in parts) for name in ("weight", "bias"))
    return (
        Rule(weights, (f"{hf}.weight",), Chain(Transpose(), rows)),
        Rule(biases, (f"{hf}.bias",), rows),
    )


def interleaved_projection(part: str, num_heads: int, *, rotated: int, rest: int = 0) -> WeightMap:
    """Return the rules of queries or keys whose rotary rows are neighbouring pairs in Hugging Face.

    Args:
        part: `q` or `k`.
        num_heads: Heads of it.
        rotated: Rows of a head that positions rotate.
        rest: Rows behind them.
    """
    pairs = interleaved(rotated, rest=rest, axis=1)
    rows = Chain(SplitAxis(num_heads), pairs, JoinAxes(num_heads))
    hf = f"{part}_proj"
    return (
        Rule((f"{part}.weight",), (f"{hf}.weight",), Chain(Transpose(), rows)),
        Rule((f"{part}.bias",), (f"{hf}.bias",), rows),
    )


@attrs.frozen
class PartialRopeFields(ConfigEntry):
    """The fields of rotary positions, and of the share of a head that has them.

    Args:
        fraction: The field of the share.
        default: What its absence means.
        theta: The field of the base.
        is_always_partial: Whether no model of the family rotates heads as a whole.
        path: Glob of the positions.
    """

    fraction: str = "partial_rotary_factor"
    default: float = 1.0
    theta: str = "rope_theta"
    is_always_partial: bool = attrs.field(default=False, kw_only=True)
    path: str = attrs.field(default="**.attention.position", kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions."""
        fraction = fields.take(self.fraction, self.default)
        given = fields.take("rope_parameters", None) or {}
        parameters = {"partial_rotary_factor": fraction, **given}
        fraction = float(parameters.pop("partial_rotary_factor"))
        inner = Fields({**fields.values, "rope_parameters": parameters})
        cfg = RopeFields(self.path, name=self.theta).read(cfg, inner)
        fields.read |= inner.read
        if fraction == 1.0:
            return cfg
        return replace_config(cfg, lambda _: True, _partial(fraction), at=self.path)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: Heads are rotated as a whole, and never are in the family.
        """
        position, fraction = common_value(cfg, self.path), 1.0
        if isinstance(position, PartialRotary.Config):
            fraction = position.fraction
            cfg = replace_config(cfg, lambda _: True, lambda old: old.inner, at=self.path)
        elif self.is_always_partial:
            raise ConfigError(
                f"{self.path} is a {type(position).__qualname__}, which rotates full heads",
                where=self.path,
            )
        return {self.fraction: fraction, **RopeFields(self.path, name=self.theta).write(cfg)}


def _partial(fraction: float) -> Any:
    return lambda old: PartialRotary.Config(fraction=fraction, inner=old)


_DENSE, _MIXED = (f"decoder.stack.layers[{kind}].feed_forward" for kind in range(2))


class _FirstDense(LayerKinds):
    """The first layers have no experts."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer."""
        num_dense = fields.take("first_k_dense_replace")
        return [int(i >= num_dense) for i in range(num_layers)]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return how many layers are dense."""
        return {"first_k_dense_replace": kinds.index(1)}


@attrs.frozen
class Groups(ConfigEntry):
    """Limits to groups: `topk_method`, `n_group` and `topk_group`."""

    free: str
    limited: str
    rated_by: int

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the limit, or none where all experts are one group.

        Raises:
            ConfigError: The fields contradict each other.
        """
        method = fields.take("topk_method", self.limited)
        counts = tuple(fields.take(name, None) or 1 for name in ("n_group", "topk_group"))
        limit = None
        if counts != (1, 1) and method == self.limited:
            limit = GroupLimit(num_groups=counts[0], num_kept=counts[1], rated_by=self.rated_by)
        elif counts != (1, 1) or method not in (self.free, self.limited):
            raise ConfigError(
                f"config.json has topk_method={method!r} with {counts[0]} groups, of which "
                f"{counts[1]} are kept; axcore knows {self.free}, {self.limited}",
                where="topk_method",
            )
        return update_config(cfg, {"**.router.groups": limit})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the three fields."""
        limit = common_value(cfg, "**.router.groups")
        counts = (limit.num_groups, limit.num_kept) if limit else (1, 1)
        method = self.limited if limit else self.free
        return {"topk_method": method, "n_group": counts[0], "topk_group": counts[1]}


class _SharedExperts(ConfigEntry):
    """`n_shared_experts`, which are one feed-forward, so many times as wide as an expert."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with a shared expert of that width."""
        width = fields.take("n_shared_experts") * common_value(cfg, f"{_MIXED}.expert.hidden_dim")
        return update_config(cfg, {f"{_MIXED}.shared.hidden_dim": width})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return how many experts that is."""
        widths = (common_value(cfg, f"{_MIXED}.{name}.hidden_dim") for name in ("shared", "expert"))
        return {"n_shared_experts": next(widths) // next(widths)}


FIRST_DENSE = _FirstDense(
    ("dense feed-forwards", "experts"), lambda layer: bool(find_config(layer, MoE))
)
EXPERTS: tuple[ConfigEntry, ...] = (
    Field("intermediate_size", (f"{_DENSE}.hidden_dim",)),
    Field("moe_intermediate_size", (f"{_MIXED}.expert.hidden_dim",)),
    _SharedExperts(),
    Field(
        "n_routed_experts",
        (f"{_MIXED}.num_experts",),
        alias="num_local_experts",
    ),
    Field("num_experts_per_tok", (f"{_MIXED}.top_k",)),
    Field("routed_scaling_factor", ("**.router.scale",), to_axcore=float),
)
"""The sizes of both kinds of layers, and how many experts there are."""

ROUTED: WeightMap = (
    *below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD),
    *linear("feed_forward.router.linear", "mlp.gate"),
)
EXPERT_WEIGHTS: WeightMap = (
    *below("feed_forward", "mlp", FEED_FORWARD),
    *below("feed_forward.shared", "mlp.shared_experts", FEED_FORWARD),
    *ROUTED,
    same("feed_forward.router.bias", "mlp.gate.e_score_correction_bias"),
)
