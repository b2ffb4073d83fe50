"""What layers ask for: operations with a reference, a portable kernel, and kernels chosen by
hardware.

Read `attention/api.py` for what a call means, `dispatch.py` for how its kernel is chosen, `op.py`
for how it is called, and `attention/blockwise.py` for how the portable one works.
"""

from axcore.ops.attention.api import attention
from axcore.ops.attention.block_math import finite_lse, row_delta, sink_gradient
from axcore.ops.attention.blockwise import active_block_pairs, block_bounds
from axcore.ops.attention.mask import columns as attention_columns
from axcore.ops.attention.mask import dropout_columns, dropout_of, dropout_rows
from axcore.ops.attention.mask import rows as attention_rows
from axcore.ops.attention.op import (
    ATTENTION_LSE,
    ATTENTION_OP,
    ATTENTION_OUT,
    AttentionInputs,
    AttentionSpec,
    Backward,
    Forward,
    named_heads,
)
from axcore.ops.blocks import Blocks
from axcore.ops.comparison import Difference, KernelComparison, comparing_kernels
from axcore.ops.cost_scopes import moved_bytes_of, moved_bytes_scope, occupancy_of, occupancy_scope
from axcore.ops.cross_entropy.op import cross_entropy, cross_entropy_sums
from axcore.ops.cross_entropy.sharding import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
)
from axcore.ops.decode_attention.op import (
    DecodeInputs,
    DecodeSpec,
    attention_call_of,
    decode_as_attention,
    decode_attention,
)
from axcore.ops.decode_matmul.kernels import low_precision_product
from axcore.ops.decode_matmul.op import (
    PANEL_WIDTH,
    DecodeMatmulInputs,
    DecodeMatmulSpec,
    are_panels_wanted,
    decode_matmul,
    full_precision_weight,
    in_panels,
    num_panels,
    packed_int4,
    unpacked_int4,
)
from axcore.ops.dispatch import (
    Call,
    ChosenKernel,
    KernelPolicy,
    KernelPreference,
    choose,
    current_policy,
    explain,
    use_policy,
)
from axcore.ops.grouped_matmul.kernels import grouped_matmul_portable
from axcore.ops.grouped_matmul.op import GroupedMatmulInputs, grouped_matmul
from axcore.ops.op import KernelOp, ResultSpec, how_to_continue_without
from axcore.ops.plan import (
    BlockSizeEntry,
    BlockSizeTable,
    KernelPlan,
    PlanRecording,
    choose_block_sizes,
    power_of_two,
    recording_choices,
    recording_plan,
)
from axcore.ops.quantized.op import amax_of_groups, quantized_dot, quantized_grouped_matmul
from axcore.ops.quantized.quantize import (
    Amaxes,
    MatmulSpec,
    Operands,
    Quantization,
    QuantizedArray,
    QuantizedDotSpec,
    amax_of,
)
from axcore.ops.quantized.vjp import QUANTIZED_INPUT, QUANTIZED_WEIGHT, quantize_input
from axcore.ops.rms_norm.op import RmsNormInputs, RmsNormSpec, rms_norm
from axcore.ops.rope.op import RopeInputs, RopeSpec, rope

__all__ = [
    "ATTENTION_LSE",
    "ATTENTION_OP",
    "ATTENTION_OUT",
    "PANEL_WIDTH",
    "QUANTIZED_INPUT",
    "QUANTIZED_WEIGHT",
    "Amaxes",
    "AttentionInputs",
    "AttentionSpec",
    "Backward",
    "BlockSizeEntry",
    "BlockSizeTable",
    "Blocks",
    "Call",
    "ChosenKernel",
    "CrossEntropyInputs",
    "CrossEntropySpec",
    "CrossEntropySums",
    "CrossEntropyTokens",
    "DecodeInputs",
    "DecodeMatmulInputs",
    "DecodeMatmulSpec",
    "DecodeSpec",
    "Difference",
    "Forward",
    "GroupedMatmulInputs",
    "KernelComparison",
    "KernelOp",
    "KernelPlan",
    "KernelPolicy",
    "KernelPreference",
    "MatmulSpec",
    "Operands",
    "PlanRecording",
    "Quantization",
    "QuantizedArray",
    "QuantizedDotSpec",
    "ResultSpec",
    "RmsNormInputs",
    "RmsNormSpec",
    "RopeInputs",
    "RopeSpec",
    "TokenStatistics",
    "active_block_pairs",
    "amax_of",
    "amax_of_groups",
    "are_panels_wanted",
    "attention",
    "attention_call_of",
    "attention_columns",
    "attention_rows",
    "block_bounds",
    "choose",
    "choose_block_sizes",
    "comparing_kernels",
    "cross_entropy",
    "cross_entropy_sums",
    "current_policy",
    "decode_as_attention",
    "decode_attention",
    "decode_matmul",
    "dropout_columns",
    "dropout_of",
    "dropout_rows",
    "explain",
    "finite_lse",
    "full_precision_weight",
    "grouped_matmul",
    "grouped_matmul_portable",
    "how_to_continue_without",
    "in_panels",
    "low_precision_product",
    "moved_bytes_of",
    "moved_bytes_scope",
    "named_heads",
    "num_panels",
    "occupancy_of",
    "occupancy_scope",
    "packed_int4",
    "power_of_two",
    "quantize_input",
    "quantized_dot",
    "quantized_grouped_matmul",
    "recording_choices",
    "recording_plan",
    "rms_norm",
    "rope",
    "row_delta",
    "sink_gradient",
    "unpacked_int4",
    "use_policy",
]
