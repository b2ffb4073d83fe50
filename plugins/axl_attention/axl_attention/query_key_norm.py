"""`QueryKeyNorm`: queries and keys of length one, times a weight, before they get positions."""

from typing import Any

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers import RMSNorm, RoPE
from axcore.module import Module
from axl_attention.wrapping import refuse_second


class QueryKeyNorm(Module):
    """Normalises each head of queries and keys, then gives them positions.

    Logits cannot grow without bound, so training bears higher learning rates.

    Source: Henry et al. 2020, arXiv:2010.04245; with weights before RoPE as in Yang et al. 2025
    (Qwen3), arXiv:2505.09388, section 2. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["QueryKeyNorm"]):
        """The config of a `QueryKeyNorm`.

        Args:
            head_dim: Size of a head.
            norm: Used for queries and for keys, each with weights of its own.
            inner: The positions.
        """

        head_dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build both norms and the positions."""
        refuse_second(QueryKeyNorm, cfg.inner)
        self.query_norm = cfg.norm.build(dim=cfg.head_dim)
        self.key_norm = cfg.norm.build(dim=cfg.head_dim)
        self.inner = cfg.inner.build(head_dim=cfg.head_dim)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys, normalised, with positions."""
        return self.inner(self.query_norm(q), self.key_norm(k), positions)


def in_place_of(old: Any) -> Any:
    """Return an attention whose queries and keys are normalised before they get positions."""
    return evolve(old, position=QueryKeyNorm.Config(inner=old.position))
