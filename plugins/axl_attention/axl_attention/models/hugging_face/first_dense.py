"""Experts after a few dense layers: what DeepSeek-V2 and V3 and GLM-4.5 have in common."""

from typing import Any

import attrs

from axcore.config import find_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    FEED_FORWARD,
    ConfigEntry,
    Field,
    Fields,
    LayerKinds,
    WeightMap,
    below,
    common_value,
    linear,
    same,
)
from axcore.layers import GroupLimit, MoE

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
    Field("routed_scaling_factor", ("**.router.scale",), to_ours=float),
)
"""The sizes of both kinds of layers, and how many experts there are."""

EXPERT_WEIGHTS: WeightMap = (
    *below("feed_forward", "mlp", FEED_FORWARD),
    *below("feed_forward.shared", "mlp.shared_experts", FEED_FORWARD),
    *below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD),
    *linear("feed_forward.router.linear", "mlp.gate"),
    same("feed_forward.router.bias", "mlp.gate.e_score_correction_bias"),
)
