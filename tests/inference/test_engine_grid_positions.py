"""An engine whose model has positions of rows and columns: answers are those of plain passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from point_model import point_model

from axcore.data import ByteTokenizer
from axcore.inference import (
    EncoderInput,
    Engine,
    EngineConfig,
    NGramLookup,
    Request,
    Sampling,
)
from axcore.layers import FIRST_SOFT_TOKEN
from axcore.modifiers import KVCache
from axcore.module import functional
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
GRID, COUNT = (2, 3), 6
CFG = point_model(TOKENIZER.vocab_size, grid=GRID)
MODEL = CFG.build()
STATE = jax.tree.map(lambda x: 3 * x, MODEL.init(3))
RANDOM = np.random.default_rng(1)
POINTS = [RANDOM.normal(size=3).astype(np.float32) * 3 for _ in range(4)]
LENGTH = 48


def request(points, text):
    """Return a request with text between its inputs and behind them."""
    prompt, soft = [256], iter(range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + 100))
    for _ in points:
        prompt += [*(next(soft) for _ in range(COUNT)), 65]
    inputs = tuple(EncoderInput(POINTS[one]) for one in points)
    return Request(
        prompt=(*prompt, *text),
        sampling=Sampling(temperature=0),
        inputs=inputs,
        max_tokens=6,
        ignores_end=True,
        num_logprobs=0,
    )


REQUESTS = [request([0], b"ab"), request([1, 2], b"long text"), request([0], b"abcdef")]


@jax.jit
def logits(tokens, points, place):
    return functional(MODEL, STATE, tokens, None, place, inputs=points, method="logits")[0]


def plain(asked):
    """Return tokens and log-probabilities of passes over all of the text, padded to one length."""
    points = jnp.asarray([[*(one.value for one in asked.inputs), POINTS[0]][:2]])
    text, logprobs = list(asked.prompt), []
    for _ in range(asked.max_tokens):
        row = jnp.asarray([text + [0] * (LENGTH - len(text))], jnp.int32)
        found = logits(row, points, jnp.asarray([[len(text) - 1]], jnp.int32))[0, 0]
        text.append(int(jnp.argmax(found)))
        logprobs.append(float(jax.nn.log_softmax(found)[text[-1]]))
    return text[len(asked.prompt) :], logprobs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"page_size": None}, marks=pytest.mark.slow),
        pytest.param({"speculation": NGramLookup(num_tokens=2)}, marks=pytest.mark.slow),
        pytest.param({"num_decode_steps": 4}, marks=pytest.mark.slow),
        pytest.param({"num_pages": 12}, marks=pytest.mark.slow),
    ],
)
def test_answers_are_those_of_plain_passes(changes):
    """Also in pieces that end in an input, and from the prefix cache: twice."""
    cfg = {
        "max_num_seqs": 2,
        "max_length": LENGTH,
        "page_size": 4,
        "num_decode_steps": 1,
        "max_num_batched_tokens": 8,
        "batch_size_buckets": (2,),
        "sampler_kinds": ("greedy",),
        **changes,
    }
    with Engine(MODEL, STATE, TOKENIZER, EngineConfig(**cfg)) as engine:
        for _ in range(2):
            streams = [engine.submit(one) for one in REQUESTS]
            for asked, stream in zip(REQUESTS, streams, strict=True):
                tokens, logprobs = plain(asked)
                found = stream.result().tokens
                assert [token.id for token in found] == tokens
                np.testing.assert_allclose([t.logprob for t in found], logprobs, atol=2e-5)


def test_formats_of_keys_and_values_leave_positions_as_they_are():
    served = KVCache(dtype="float16").apply(CFG, Hardware.parse("cpu-1"))
    assert served.decoder.embedding == CFG.decoder.embedding
