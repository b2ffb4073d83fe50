"""`Embedding` reads rows, and its gradient adds up at the rows that were read."""

import jax
import numpy as np

from axcore.layers import Embedding
from axcore.module import functional

TOKENS = np.array([[3, 1, 3], [0, 3, 4]], np.int32)


def test_embedding_returns_scaled_rows(call):
    embedding = Embedding.Config(vocab_size=5, dim=4, scale=2.0).build()
    state = embedding.init(0)
    np.testing.assert_array_equal(
        call(embedding, state, TOKENS), 2.0 * np.asarray(state["weight"])[TOKENS]
    )


def test_gradient_adds_up_over_equal_tokens(random):
    embedding = Embedding.Config(vocab_size=5, dim=4).build()
    weights = random(2, 3, 4)

    def loss(state, tokens):
        return (functional(embedding, state, tokens)[0] * weights).sum()

    gradient = jax.jit(jax.grad(loss))(embedding.init(0), TOKENS)
    expected = np.zeros((5, 4), np.float32)
    np.add.at(expected, TOKENS, weights)
    np.testing.assert_allclose(gradient["weight"], expected, rtol=1e-6, atol=1e-6)
