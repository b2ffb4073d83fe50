"""`MoE`: a mixture of experts, each a feed-forward, in the place of one feed-forward."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, find_config
from axcore.errors import ConfigError
from axcore.layers.moe.dropless import Dropless
from axcore.layers.moe.experts import Experts
from axcore.layers.moe.router import Router
from axcore.layers.tokens import TOKEN_MASK
from axcore.module import Module, count_params


class MoE(Module):
    """Sends each token to the few experts that a router chooses, and adds up what they make of it.

    Any feed-forward becomes its experts' config: `replace_config(cfg, FeedForward, lambda ffn:
    MoE.Config(expert=ffn, num_experts=8, top_k=2))`.

    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1; shared experts, Dai et al. 2024,
    arXiv:2401.06066, eq. 9. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["MoE"]):
        """Describes a `MoE`.

        Args:
            dim: Size of the last dimension of input and output.
            expert: The feed-forward that each expert is.
            num_experts: Number of experts.
            top_k: Experts that each token goes to.
            router: Chooses them.
            dispatch: How tokens get to them and back.
            shared: A feed-forward that every token goes to beside them.
        """

        dim: PositiveInt = REQUIRED
        expert: Module.Config = REQUIRED
        num_experts: PositiveInt = REQUIRED
        top_k: PositiveInt = REQUIRED
        router: Module.Config = Router.Config()
        dispatch: Experts.Config = Dropless.Config()
        shared: Module.Config | None = None

    def setup(self, cfg: Config) -> None:
        """Builds the router, the experts and the shared one."""
        for name in ("expert", "shared"):
            _check_is_plain(getattr(cfg, name), name)
        self.router = cfg.router.build(dim=cfg.dim, num_experts=cfg.num_experts, top_k=cfg.top_k)
        self.experts = cfg.dispatch.build(
            dim=cfg.dim, num_experts=cfg.num_experts, expert=cfg.expert
        )
        share = 1.0 - cfg.top_k / cfg.num_experts
        self.inactive_params = share * count_params(self.experts.param_specs())
        self.shared = None if cfg.shared is None else cfg.shared.build(dim=cfg.dim)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Returns the mixture for each token."""
        routing = self.router(x)
        with self.with_shared(TOKEN_MASK, None):  # experts get rows in another order
            y = self.experts(x, routing)
        return y if self.shared is None else y + self.shared(x)


def _check_is_plain(expert: Module.Config | None, name: str) -> None:
    if expert is not None and find_config(expert, MoE):
        raise ConfigError(
            "an expert is itself a mixture of experts",
            where=name,
            hint="replace feed-forwards once: replace_config(..., at=...) selects them",
        )
