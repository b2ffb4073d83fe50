"""The features of the core that the meter measures: how each is added to any training config.

Each function is all that somebody writes to have the feature in their models; its lines are what
is counted.
"""

from typing import Any

from axcore.complexity.evidence import chooses, computes, runs
from axcore.complexity.trace import Operation
from axcore.config import evolve, replace_config
from axcore.layers import Fp8Training, Int8Training, RoPE
from axcore.module import Module
from axcore.plugins import Hardware


def with_rope(cfg: Any) -> Any:
    """Rotary positions in every attention layer."""
    return replace_config(cfg, Module, RoPE.Config(), at="**.attention.position")


def with_int8(cfg: Any) -> Any:
    """Products of linear layers in int8."""
    return Int8Training().apply(cfg, Hardware.parse("cpu-1"))


def with_fp8(cfg: Any) -> Any:
    """Products of linear layers in float8."""
    return Fp8Training().apply(cfg, Hardware.parse("cpu-1"))


def with_reference_attention(cfg: Any) -> Any:
    """Another kernel for an op, by its name."""
    return evolve(cfg, kernels={**cfg.kernels, "attention": "reference"})


def _is_product_of(dtype: str) -> Any:
    def holds(operation: Operation) -> bool:
        return operation.name == "dot_general" and all(
            operand.startswith(dtype) for operand in operation.dtypes
        )

    return holds


has_rope = runs(RoPE)
has_int8 = computes("product of int8", _is_product_of("int8"))
has_fp8 = computes("product of float8", _is_product_of("float8"))
has_reference_attention = chooses("attention", "reference")
