"""What layers ask for: operations with a reference, a portable answer, and kernels chosen by
hardware.

Read `attention/api.py` for what a call means, `dispatch/choice.py` for how its kernel is chosen,
`dispatch/kernel_op.py` for how it is called, and `attention/blockwise.py` for how the portable one
works.
"""

from axcore.ops.attention.api import attention
from axcore.ops.attention.block_math import finite_lse, row_delta, sink_gradient
from axcore.ops.attention.block_pairs import active_block_pairs
from axcore.ops.attention.block_sparsity import block_bounds
from axcore.ops.attention.dropout import dropout_columns, dropout_of, dropout_rows
from axcore.ops.attention.kernels import ATTENTION_BACKWARD, attention_call, attention_parts
from axcore.ops.attention.mask import columns as attention_columns
from axcore.ops.attention.mask import rows as attention_rows
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.attention.vjp import Backward, Forward
from axcore.ops.blocks import Blocks
from axcore.ops.cross_entropy.api import cross_entropy, cross_entropy_sums
from axcore.ops.cross_entropy.types import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
)
from axcore.ops.decode.api import decode_attention
from axcore.ops.decode.as_attention import attention_call_of, decode_as_attention
from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.ops.decode_matmul.api import decode_matmul
from axcore.ops.decode_matmul.panels import (
    PANEL_WIDTH,
    are_panels_wanted,
    in_panels,
    num_panels,
)
from axcore.ops.decode_matmul.portable import narrow_product
from axcore.ops.decode_matmul.types import DecodeMatmulInputs, DecodeMatmulSpec
from axcore.ops.decode_matmul.widening import packed_int4, unpacked_int4, wide_weight
from axcore.ops.dispatch.block_sizes import BlockSizeEntry, BlockSizeTable, power_of_two
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.choice import ChosenKernel, choose
from axcore.ops.dispatch.comparison import Difference, KernelComparison, comparing_kernels
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec, how_to_continue_without
from axcore.ops.dispatch.plan import (
    KernelPlan,
    PlanRecording,
    choose_block_sizes,
    recording_choices,
    recording_plan,
)
from axcore.ops.dispatch.policy import (
    KernelPolicy,
    KernelPreference,
    current_policy,
    use_policy,
)
from axcore.ops.dispatch.registry import explain
from axcore.ops.grouped_matmul.api import grouped_matmul
from axcore.ops.grouped_matmul.occupancy import occupancy_of, occupancy_scope
from axcore.ops.grouped_matmul.portable import grouped_matmul_portable
from axcore.ops.grouped_matmul.types import GroupedMatmulInputs
from axcore.ops.moved_bytes import moved_bytes_of, moved_bytes_scope
from axcore.ops.quantized.dot import quantized_dot
from axcore.ops.quantized.grouped import amax_of_groups, quantized_grouped_matmul
from axcore.ops.quantized.quantize import amax_of
from axcore.ops.quantized.types import (
    Amaxes,
    MatmulSpec,
    Operands,
    Quantization,
    QuantizedArray,
    QuantizedDotSpec,
)
from axcore.ops.quantized.vjp import QUANTIZED_INPUT, QUANTIZED_WEIGHT, narrow_input
from axcore.ops.residuals import ATTENTION_LSE, ATTENTION_OUT, named_heads
from axcore.ops.rms_norm.api import rms_norm
from axcore.ops.rms_norm.types import RmsNormInputs, RmsNormSpec
from axcore.ops.rope.api import rope
from axcore.ops.rope.types import RopeInputs, RopeSpec

__all__ = [
    "ATTENTION_BACKWARD",
    "ATTENTION_LSE",
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
    "attention_call",
    "attention_call_of",
    "attention_columns",
    "attention_parts",
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
    "grouped_matmul",
    "grouped_matmul_portable",
    "how_to_continue_without",
    "in_panels",
    "moved_bytes_of",
    "moved_bytes_scope",
    "named_heads",
    "narrow_input",
    "narrow_product",
    "num_panels",
    "occupancy_of",
    "occupancy_scope",
    "packed_int4",
    "power_of_two",
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
    "wide_weight",
]
