"""What layers ask for: operations with a reference, a portable answer, and kernels chosen by
hardware.

Read `attention.py` for what a call means, `registry.py` for how its kernel is chosen, and
`attention_blockwise.py` for how the portable one works.
"""

from axcore.ops.attention import attention
from axcore.ops.attention_block_math import finite_lse, row_delta, sink_gradient
from axcore.ops.attention_blocks import live_pairs
from axcore.ops.attention_dropout import dropout_columns, dropout_of, dropout_rows
from axcore.ops.attention_kernels import ATTENTION_BACKWARD, attention_call, attention_parts
from axcore.ops.attention_live import block_bounds
from axcore.ops.attention_mask import columns as attention_columns
from axcore.ops.attention_mask import rows as attention_rows
from axcore.ops.attention_types import AttentionInputs, AttentionSpec
from axcore.ops.attention_vjp import Backward, Forward, ForwardOnly
from axcore.ops.blocks import Blocks
from axcore.ops.call import Call
from axcore.ops.cross_entropy import cross_entropy, cross_entropy_sums
from axcore.ops.cross_entropy_types import CrossEntropyInputs, CrossEntropySpec, CrossEntropySums
from axcore.ops.decode_attention import decode_attention
from axcore.ops.decode_attention_types import DecodeInputs, DecodeSpec
from axcore.ops.grouped_matmul import grouped_matmul
from axcore.ops.grouped_matmul_portable import grouped_matmul_portable
from axcore.ops.plan import (
    KernelPlan,
    PlanRecording,
    choose_tiles,
    recording_choices,
    recording_plan,
)
from axcore.ops.policy import KernelPolicy, current_policy, use_policy
from axcore.ops.quantized_dot import quantized_dot
from axcore.ops.quantized_dot_quantize import amax_of
from axcore.ops.quantized_dot_types import (
    Amaxes,
    Narrow,
    Operands,
    ProductSpec,
    Quantization,
    QuantizedDotSpec,
)
from axcore.ops.quantized_dot_vjp import QUANTIZED_INPUT, QUANTIZED_WEIGHT
from axcore.ops.quantized_grouped import amax_of_groups, quantized_grouped_matmul
from axcore.ops.registry import Choice, choose, explain
from axcore.ops.residuals import ATTENTION_LSE, ATTENTION_OUT
from axcore.ops.rms_norm import rms_norm
from axcore.ops.tiles import TileEntry, TileTable, power_of_two

__all__ = [
    "ATTENTION_BACKWARD",
    "ATTENTION_LSE",
    "ATTENTION_OUT",
    "QUANTIZED_INPUT",
    "QUANTIZED_WEIGHT",
    "Amaxes",
    "AttentionInputs",
    "AttentionSpec",
    "Backward",
    "Blocks",
    "Call",
    "Choice",
    "CrossEntropyInputs",
    "CrossEntropySpec",
    "CrossEntropySums",
    "DecodeInputs",
    "DecodeSpec",
    "Forward",
    "ForwardOnly",
    "KernelPlan",
    "KernelPolicy",
    "Narrow",
    "Operands",
    "PlanRecording",
    "ProductSpec",
    "Quantization",
    "QuantizedDotSpec",
    "TileEntry",
    "TileTable",
    "amax_of",
    "amax_of_groups",
    "attention",
    "attention_call",
    "attention_columns",
    "attention_parts",
    "attention_rows",
    "block_bounds",
    "choose",
    "choose_tiles",
    "cross_entropy",
    "cross_entropy_sums",
    "current_policy",
    "decode_attention",
    "dropout_columns",
    "dropout_of",
    "dropout_rows",
    "explain",
    "finite_lse",
    "grouped_matmul",
    "grouped_matmul_portable",
    "live_pairs",
    "power_of_two",
    "quantized_dot",
    "quantized_grouped_matmul",
    "recording_choices",
    "recording_plan",
    "rms_norm",
    "row_delta",
    "sink_gradient",
    "use_policy",
]
