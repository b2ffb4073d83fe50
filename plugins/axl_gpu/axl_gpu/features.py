"""What axl-gpu adds to any model, for `axcore loc` to measure."""

from typing import Any

from axcore.complexity import chooses, multiplies
from axcore.modifiers import Fp8Training
from axcore.plugins import Hardware


def with_fp8(cfg: Any) -> Any:
    """Products of linear layers in float8."""
    return Fp8Training().apply(cfg, Hardware.parse("gpu-h100-8"))


has_fp8 = multiplies("float8")
has_cudnn_attention = chooses(
    "attention", "cudnn_attention", "cudnn_wide_attention", "cudnn_packed_attention"
)
