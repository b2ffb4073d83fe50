"""RoPE: products depend on distances only, and the layout is that of Hugging Face."""

import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.layers import NoPosition, RoPE


def _hugging_face(x, positions, theta):
    """Rotates as `transformers.models.llama.modeling_llama` does: `rotate_half` and full tables."""
    head_dim = x.shape[-1]
    inverse = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    angles = positions[..., None] * inverse
    table = np.concatenate([angles, angles], -1)[:, :, None, :]
    first, second = x[..., : head_dim // 2], x[..., head_dim // 2 :]
    return x * np.cos(table) + np.concatenate([-second, first], -1) * np.sin(table)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_rotation_has_the_layout_of_hugging_face(call, random, theta):
    rope = RoPE.Config(head_dim=8, theta=theta).build()
    q, k = random(2, 5, 3, 8), random(2, 5, 1, 8)
    positions = np.array([[0, 1, 2, 3, 4], [7, 0, 1, 90, 1000]], np.int32)
    for rotated, x in zip(call(rope, {}, q, k, positions), (q, k), strict=True):
        expected = _hugging_face(x, positions, theta)
        np.testing.assert_allclose(rotated, expected, rtol=2e-4, atol=2e-4)


def test_products_depend_on_the_distance_only(call, random):
    rope = RoPE.Config(head_dim=8).build()
    q, k = random(1, 1, 1, 8), random(1, 1, 1, 8)

    def product(query_position, key_position):
        at = lambda x, p: call(rope, {}, x, x, np.full((1, 1), p, np.int32))[0]  # noqa: E731
        return (at(q, query_position) * at(k, key_position)).sum()

    assert product(9, 4) == pytest.approx(product(105, 100), abs=1e-4)
    assert product(9, 4) != pytest.approx(product(9, 5), abs=1e-3)


def test_rotation_keeps_lengths_and_leaves_position_zero(call, random):
    rope = RoPE.Config(head_dim=8).build()
    x = random(1, 3, 2, 8)
    rotated, _ = call(rope, {}, x, x, np.array([[0, 5, 70]], np.int32))
    np.testing.assert_array_equal(rotated[:, 0], x[:, 0])
    np.testing.assert_allclose(
        np.linalg.norm(rotated, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
    )


def test_no_position_leaves_heads_as_they_are(call, random):
    q, k = random(1, 3, 2, 8), random(1, 3, 1, 8)
    positions = np.array([[0, 5, 70]], np.int32)
    same_q, same_k = call(NoPosition.Config(head_dim=8).build(), {}, q, k, positions)
    np.testing.assert_array_equal(same_q, q)
    np.testing.assert_array_equal(same_k, k)


def test_odd_heads_are_refused():
    with pytest.raises(ConfigError, match="head_dim is 7; rotary positions need it even"):
        RoPE.Config(head_dim=7).build()
