"""NKI's rotary positions equal those of the layer, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_trainium.kernels.rope.api import nki_rotate

from axcore.errors import KernelError
from axcore.layers import rope_frequencies, rotate
from axcore.ops.dispatch.tolerance import TOLERANCES, relative_error

FREQUENCIES = rope_frequencies(16, 10_000.0)


@pytest.mark.usefixtures("runs_nki")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rotations_and_their_gradients_are_those_of_the_layer(dtype):
    numbers = np.random.default_rng(0)
    q, k = (
        jnp.asarray(numbers.standard_normal((2, 70, heads, 16)).astype(np.float32)).astype(dtype)
        for heads in (4, 2)
    )
    positions = jnp.arange(140).reshape(2, 70) % 90

    def values_and_gradients(function):
        def loss(q, k):
            rotated = function(q, k, positions, frequencies=FREQUENCIES, amplitude=1.25)
            return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in rotated), rotated

        gradients, rotated = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(q, k)
        return *rotated, *gradients

    allowed = TOLERANCES[dtype]
    pairs = zip(values_and_gradients(nki_rotate), values_and_gradients(rotate), strict=True)
    for (ours, theirs), bound in zip(
        pairs, [allowed.forward] * 2 + [allowed.backward] * 2, strict=True
    ):
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, theirs) <= bound


@pytest.mark.parametrize(
    ("heads", "dtype", "reason"),
    [
        (4, jnp.float16, "nki_rotate takes bfloat16 and float32, not float16"),
        (4000, jnp.float32, "nki_rotate takes heads of up to 196608 bytes of a partition, not 512"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_hint(heads, dtype, reason):
    x = jnp.zeros((1, 1, heads, 16), dtype)
    with pytest.raises(KernelError, match=reason) as caught:
        nki_rotate(x, x, jnp.zeros((1, 1), jnp.int32), frequencies=FREQUENCIES)
    assert caught.value.hint == "call axcore.layers.rotate"
