"""`AttentionSinks`: a logit per head that takes probability and gives no value."""

from typing import Any, ClassVar

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import DotProductAttention, TokenInfo
from axcore.module import Module, Param
from axl_attention.wrapping import refuse_second


class AttentionSinks(Module):
    """Lets each head attend to nothing, by as much as it learns.

    A weight of minus infinity is no sink. Learned in float32, zero at first.

    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.3 (the zero sink, with a learned logit);
    OpenAI 2025 (gpt-oss), arXiv:2508.10925, section 2.2. Slot protocol: the parent fills
    `num_heads`.
    """

    @config
    class Config(Module.Config["AttentionSinks"]):
        """Describes `AttentionSinks`.

        Args:
            num_heads: Number of query heads.
            core: Weighs the values by keys and sinks.
        """

        SEES_ROW_OFFSETS: ClassVar[bool] = True

        num_heads: PositiveInt = REQUIRED
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the sinks and build the core."""
        refuse_second(AttentionSinks, cfg.core)
        self.sinks = Param((cfg.num_heads,), axes=("heads",), init=0.0, cast=False)
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(self, q: Any, k: Any, v: Any, info: TokenInfo, **options: Any) -> Any:
        """Return each query's weighted mean of values; the weights' sum is less than one."""
        return self.core(q, k, v, info, sinks_N=self.sinks, **options)


def in_place_of(old: Any) -> AttentionSinks.Config:
    """Return the config that takes the place of attention without sinks."""
    return AttentionSinks.Config(core=old)
