"""NKI's rotary positions keep the op's contract, forward and backward."""

import pytest
from axl_trainium.kernels.rope.api import unsupported_reason

from axcore.ops import Call
from axcore.testing import KernelSuite


@pytest.mark.usefixtures("runs_nki")
class TestKernel(KernelSuite):
    plugin = "axl-trainium"
    keys = ("rope/nki_rope",)
    dtypes = ("float32", "bfloat16")
    case_names = ("plain", "amplitude", "one_head")


@pytest.mark.parametrize(
    ("heads", "dtype", "reason"),
    [
        (4, "float16", "takes bfloat16 and float32, not float16"),
        (4000, "float32", "takes heads of up to 196608 bytes of a partition, not 512"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(heads, dtype, reason):
    call = Call(op="rope", shapes=(("x", (1, 1, heads, 16)),), dtypes=(("x", dtype),))
    assert reason in unsupported_reason(call)
