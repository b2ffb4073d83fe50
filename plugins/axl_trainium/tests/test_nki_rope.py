"""What NKI's rotary positions do not serve."""

import pytest
from axl_trainium.kernels.rope.api import unsupported_reason

from axcore.ops import Call


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
