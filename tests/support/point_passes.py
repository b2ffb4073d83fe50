"""Requests with points to a model of `point_model`, and what plain passes answer them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from axcore.inference import EncoderInput, Request, Sampling
from axcore.layers import FIRST_SOFT_TOKEN
from axcore.module import functional

LENGTH = 48
"""Tokens of all rows, so that passes are compiled once."""


class PointPasses:
    """A model with random weights, and points to ask it about.

    Args:
        cfg: Of `point_model`, or changed from it.
        count: Soft tokens of a point.
        begin: What each prompt begins with.
    """

    def __init__(self, cfg: Any, *, count: int, begin: tuple[int, ...]) -> None:
        self.model = cfg.build()
        self.state = jax.tree.map(lambda x: 3 * x, self.model.init(3))
        random = np.random.default_rng(1)
        self.points = [random.normal(size=3).astype(np.float32) * 3 for _ in range(4)]
        self._count, self._begin = count, begin
        self._logits = jax.jit(
            lambda tokens, points, place: functional(
                self.model, self.state, tokens, None, place, inputs=points, method="logits"
            )[0]
        )

    def request(self, points: list[int], text: bytes) -> Request:
        """Return a request with text between its inputs and behind them."""
        prompt, soft = [*self._begin], iter(range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + 100))
        for _ in points:
            prompt += [*(next(soft) for _ in range(self._count)), 65]
        return Request(
            prompt=(*prompt, *text),
            sampling=Sampling(temperature=0),
            inputs=tuple(EncoderInput(self.points[one]) for one in points),
            max_tokens=6,
            ignores_end=True,
            num_logprobs=0,
        )

    def plain(self, asked: Request) -> tuple[list[int], list[float]]:
        """Return tokens and log-probabilities of passes over all of the text, of one length."""
        points = jnp.asarray([[*(one.value for one in asked.inputs), self.points[0]][:2]])
        text, logprobs = list(asked.prompt), []
        for _ in range(asked.max_tokens):
            row = jnp.asarray([text + [0] * (LENGTH - len(text))], jnp.int32)
            place = jnp.asarray([[len(text) - 1]], jnp.int32)
            found = self._logits(row, points, place)[0, 0]
            text.append(int(jnp.argmax(found)))
            logprobs.append(float(jax.nn.log_softmax(found)[text[-1]]))
        return text[len(asked.prompt) :], logprobs
