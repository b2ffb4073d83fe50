"""The features of the core that the meter measures: how each is added to any training config.

Each function is all that somebody writes to have the feature in their models; its lines are what
is counted.
"""

from typing import Any

from axcore.complexity.evidence import chooses, multiplies, runs
from axcore.config import evolve, replace_config
from axcore.layers import Int8Training, RoPE
from axcore.module import Module
from axcore.plugins import Hardware


def with_rope(cfg: Any) -> Any:
    """Rotary positions in every attention layer."""
    return replace_config(cfg, Module, RoPE.Config(), at="**.attention.position")


def with_int8(cfg: Any) -> Any:
    """Products of linear layers in int8."""
    return Int8Training().apply(cfg, Hardware.parse("cpu-1"))


def with_reference_attention(cfg: Any) -> Any:
    """Another kernel for an op, by its name."""
    return evolve(cfg, kernels={**cfg.kernels, "attention": "reference"})


has_rope = runs(RoPE)
has_int8 = multiplies("int8")
has_reference_attention = chooses("attention", "reference")
