"""The public signatures of NKI that kernels may call: what the linter and the simulator check by.

They were read in November 2026 in AWS's documentation, the "Neuron Kernel Interface (NKI) API
Reference Manual". NKI 0.7 comes with release 2.33.0 of the SDK; where no page of that release was
found, the address is that of the newest one that was. Types are left out, and defaults that are
names of the SDK are written `...`.
"""

import inspect
from collections.abc import Mapping

import attrs

SITE = "https://awsdocs-neuron.readthedocs-hosted.com/"


@attrs.frozen
class PublicName:
    """A function of NKI.

    Args:
        name: With its module: `nki.isa.memset`.
        parameters: As the documentation writes them, without types.
        edition: The part of the page's address that says which edition was read.
    """

    name: str
    parameters: str
    edition: str = "en/v2.33.0"

    @property
    def page(self) -> str:
        """Address of the page."""
        owner = self.name.rpartition(".")[0] if ".NkiTensor." in self.name else self.name
        return f"{SITE}{self.edition}/nki/api/generated/{owner}.html"

    def signature(self) -> inspect.Signature:
        """Return the signature, to bind calls with."""
        namespace: dict[str, object] = {}
        exec(f"def function({self.parameters}): ...", namespace)
        function = namespace["function"]
        assert callable(function)
        return inspect.signature(function)


def _table(*names: PublicName) -> Mapping[str, PublicName]:
    return {one.name.rpartition(".")[2]: one for one in names}


ISA = _table(
    PublicName(
        "nki.isa.activation",
        "dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, reduce_cmd=..., "
        "engine=..., name=None",
    ),
    PublicName(
        "nki.isa.dma_copy", "dst, src, oob_mode=..., dge_mode=..., engine=..., name=None", "general"
    ),
    PublicName(
        "nki.isa.iota", "dst, pattern, offset, channel_multiplier=0, name=None", "en/latest"
    ),
    PublicName("nki.isa.memset", "dst, value, engine=..., name=None"),
    PublicName(
        "nki.isa.nc_matmul",
        "dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, "
        "is_transpose=False, accumulate=None, tile_position=(), tile_size=(), perf_mode=..., "
        "name=None",
    ),
    PublicName("nki.isa.nc_transpose", "dst, data, engine=..., name=None", "general"),
    PublicName(
        "nki.isa.range_select",
        "dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=..., reduce_res=None, "
        "reduce_op=..., range_start=0, on_false_value=..., name=None",
        "en/v2.32.0",
    ),
    PublicName("nki.isa.reciprocal", "dst, data, name=None"),
    PublicName(
        "nki.isa.scalar_tensor_tensor",
        "dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, reduce_cmd=..., "
        "reduce_op=..., reduce_res=None, name=None",
    ),
    PublicName("nki.isa.tensor_copy", "dst, src, engine=..., name=None", "en/v2.28.1"),
    PublicName(
        "nki.isa.tensor_reduce",
        "dst, op, data, axis, negate=False, keepdims=False, name=None",
        "en/v2.31.0",
    ),
    PublicName(
        "nki.isa.tensor_scalar",
        "dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, "
        "engine=..., name=None",
    ),
    PublicName("nki.isa.tensor_tensor", "dst, data1, data2, op, engine=..., name=None"),
)
"""Instructions, by their names in `nki.isa`."""

LANGUAGE = _table(
    PublicName("nki.language.fori_loop", "lower, upper, body_fun, step=1"),
    PublicName("nki.language.ndarray", "shape, dtype, buffer=..., name='', address=None"),
)
"""Functions, by their names in `nki.language`."""

TENSOR = _table(
    PublicName(
        "nki.language.NkiTensor.ap",
        "pattern, offset=None, scalar_offset=None, vector_offset=None, indirect_dim=0, dtype=None",
    ),
)
"""Methods of tensors."""

TENSOR_ATTRIBUTES = frozenset({"dtype", "shape"})

ISA_NAMES = frozenset({"reduce_cmd.idle", "reduce_cmd.reset_reduce"})
"""Enumerations' members that kernels may use, by their names in `nki.isa`."""

LANGUAGE_NAMES = frozenset(
    {
        *("float32", "bfloat16", "float16", "int32"),
        *("sbuf", "psum", "shared_hbm"),
        *("add", "subtract", "multiply", "maximum", "minimum"),
        *("equal", "less", "less_equal", "greater", "greater_equal"),
        *("copy", "exp", "log", "rsqrt", "square", "tanh"),
    }
)
"""Dtypes, memories, operators and functions of the Scalar Engine, by their names in `nki.language`.

Source: "NKI ISA API Common Fields", edition v2.33.1, and "nki.language".
"""
