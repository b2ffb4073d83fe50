"""An engine whose model has positions of rows and columns: answers are those of plain passes."""

import numpy as np
import pytest
from point_model import point_model
from point_passes import LENGTH, PointPasses

from axcore.data import ByteTokenizer
from axcore.inference import (
    Engine,
    EngineConfig,
    NGramLookup,
)
from axcore.modifiers import KVCache
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
GRID, COUNT = (2, 3), 6
CFG = point_model(TOKENIZER.vocab_size, grid=GRID)
PASSES = PointPasses(CFG, count=COUNT, begin=(256,))
MODEL, STATE, POINTS = PASSES.model, PASSES.state, PASSES.points
request, plain = PASSES.request, PASSES.plain
REQUESTS = [request([0], b"ab"), request([1, 2], b"long text"), request([0], b"abcdef")]


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
