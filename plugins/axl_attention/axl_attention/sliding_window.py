"""`SlidingWindowAttention`: each token sees a fixed number of tokens, itself the last of them."""

from typing import Any

from jaxtyping import Array, Float, Num

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import TokenInfo, attend
from axcore.module import Module


class SlidingWindowAttention(Module):
    """Causal softmax attention over the last `window` tokens; replaces full attention.

    Through `n` layers information still travels `n * (window - 1)` tokens. Kernels skip blocks of
    keys outside the window, so time and memory grow with `time * window`.

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1; Jiang et al. 2023, arXiv:2310.06825.
    """

    @config
    class Config(Module.Config["SlidingWindowAttention"]):
        """The config of a `SlidingWindowAttention`.

        Args:
            num_heads: Number of query heads.
            window: Number of tokens that each token sees, itself counted.
            scale: Factor on the products; by default `1 / sqrt(head_dim)`.
            soft_cap: Caps logits smoothly at this value.
        """

        num_heads: PositiveInt = REQUIRED
        window: int = 1024
        scale: float | None = None
        soft_cap: float | None = None

        @property
        def window_size(self) -> int:
            """How many tokens a token sees at most, itself counted."""
            return self.window

    def setup(self, cfg: Config) -> None:
        """Refuse windows in which no token sees anything."""
        if cfg.window < 1:
            raise ConfigError(
                f"window is {cfg.window}; a token sees at least itself",
                hint="set window to 1 or more",
            )

    def forward(
        self,
        q: Float[Array, "batch time heads head_dim"],
        k: Num[Array, "rows keys kv_heads head_dim"],
        v: Num[Array, "rows keys kv_heads value_dim"],
        info: TokenInfo,
        **options: Any,
    ) -> Float[Array, "batch time heads value_dim"]:
        """Return each query's weighted mean of values; tokens of other documents are not seen."""
        cfg = self.config
        return attend(
            q,
            k,
            v,
            info,
            causal=True,
            window=(cfg.window - 1, None),
            scale=cfg.scale,
            soft_cap=cfg.soft_cap,
            **options,
        )


def in_place_of(old: Any) -> SlidingWindowAttention.Config:
    """Return the config that takes the place of full attention: its scale and cap are kept."""
    return SlidingWindowAttention.Config(scale=old.scale, soft_cap=old.soft_cap)
