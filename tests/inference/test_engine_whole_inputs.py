"""An engine whose soft tokens see all of their input: no call ends within one."""

import jax.numpy as jnp
import numpy as np
import pytest
from point_model import point_model
from point_passes import LENGTH, PointPasses

from axcore.config import update_config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import (
    Engine,
    EngineConfig,
    NGramLookup,
)
from axcore.models import with_whole_inputs, without_whole_inputs
from axcore.module import functional

TOKENIZER = ByteTokenizer.Config().build()
COUNT = 6
CAUSAL = update_config(
    point_model(TOKENIZER.vocab_size, grid=(2, 3)), {"**.core.window": (9, None)}
)
PASSES = PointPasses(with_whole_inputs(CAUSAL), count=COUNT, begin=(256, 66))
MODEL, STATE, POINTS = PASSES.model, PASSES.state, PASSES.points
request, plain = PASSES.request, PASSES.plain
REQUESTS = [request([0], b"ab"), request([1, 2], b"long text"), request([0], b"abcdef")]


def engine_config(**changes):
    cfg = {
        "max_num_seqs": 2,
        "max_length": LENGTH,
        "page_size": 4,
        "num_decode_steps": 1,
        "max_num_batched_tokens": 8,
        "batch_size_buckets": (2,),
        "sampler_kinds": ("greedy",),
    }
    return EngineConfig(**{**cfg, **changes})


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
    """Also in pieces, none of which ends in an input, and from the prefix cache: twice."""
    with Engine(MODEL, STATE, TOKENIZER, engine_config(**changes)) as engine:
        for _ in range(2):
            streams = [engine.submit(one) for one in REQUESTS]
            for asked, stream in zip(REQUESTS, streams, strict=True):
                tokens, logprobs = plain(asked)
                found = stream.result().tokens
                assert [token.id for token in found] == tokens
                np.testing.assert_allclose([t.logprob for t in found], logprobs, atol=2e-5)


def test_calls_that_are_shorter_than_an_input_are_refused():
    with pytest.raises(ConfigError, match="a call reads 4 tokens") as error:
        Engine(MODEL, STATE, TOKENIZER, engine_config(max_num_batched_tokens=4))
    assert "max_num_batched_tokens=6" in str(error.value)


def test_all_tokens_of_an_input_see_its_last_one_and_text_before_it_does_not():
    linear = STATE["encoder"]["linear"]
    other = {**linear, "weight": linear["weight"].at[:, -16:].add(1)}  # of the last soft token
    changed = {**STATE, "encoder": {"linear": other}}
    tokens = jnp.asarray([REQUESTS[0].prompt], jnp.int32)
    one, two = (
        functional(MODEL, state, tokens, inputs=jnp.asarray(POINTS[:1]), method="logits")[0]
        for state in (STATE, changed)
    )
    is_same = np.all(np.asarray(one == two), axis=-1)[0]
    assert is_same[:2].all()
    assert not is_same[2:].any()


def test_the_plain_model_is_found_again():
    assert without_whole_inputs(MODEL.config) == CAUSAL
