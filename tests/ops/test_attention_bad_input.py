"""Arguments of attention that do not fit are refused, with their sizes."""

import jax.numpy as jnp
import pytest

from axcore.errors import KernelError
from axcore.ops import attention

Q, K = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 6, 2, 8))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((Q[0], K, K), r"q has shape \(5, 4, 8\); expected 4 dimensions BTNH"),
        ((Q, K.astype(jnp.bfloat16), K), r"q float32, k bfloat16, v float32; expected one"),
        ((Q, K[:1], K), r"batch sizes differ: q BTNH \(2, 5, 4, 8\), k BSKH \(1, 6, 2, 8\)"),
        ((Q, K, K[:, :5]), r"k and v have different numbers of keys"),
        ((Q, K, K[:, :, :1]), r"k and v have different numbers of heads"),
        ((Q[..., :4], K, K), r"q and k have different widths"),
        ((Q[:, :, :3], K, K), r"query heads are not a multiple of the key heads"),
    ],
)
def test_arrays_that_do_not_fit_are_named(arrays, message):
    with pytest.raises(KernelError, match=message):
        attention(*arrays)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"segment_ids": jnp.ones((2, 5), int)},
            r"key segment_ids has shape \(2, 5\); expected \(2, 6\)",
        ),
        (
            {"key_ranges": (jnp.ones((2, 5)), jnp.ones((2, 5)))},
            r"key_ranges start has dtype float32; expected integer",
        ),
        ({"query_offset": jnp.ones((3,), int)}, r"query_offset has shape \(3,\); expected \(2,\)"),
        ({"sinks_N": jnp.ones((2,))}, r"sinks has shape \(2,\); expected \(4,\)"),
        ({"bias_BNTS": jnp.ones((2, 2, 5, 6))}, r"bias has shape \(2, 2, 5, 6\); expected BNTS"),
        ({"window": (-1, 0)}, r"window is \(-1, 0\); expected sizes >= 0 or None"),
        ({"soft_cap": 0.0}, r"soft_cap is 0.0; expected a positive number"),
        ({"scale": float("inf")}, r"scale is inf; expected a finite number"),
        ({"dropout_rate": 1.0}, r"dropout_rate is 1.0; expected 0 <= rate < 1"),
        ({"dropout_rate": 0.1}, r"dropout_rate is 0.1 and there is no dropout_seed"),
    ],
)
def test_parts_that_do_not_fit_are_named(parts, message):
    with pytest.raises(KernelError, match=message):
        attention(Q, K, K, **parts)
