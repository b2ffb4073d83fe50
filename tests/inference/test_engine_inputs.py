"""An engine whose model reads inputs of another kind: its answers are those of plain passes."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from point_model import NUM_SOFT, point_model

from axcore.data import ByteTokenizer
from axcore.inference import (
    EncoderInput,
    Engine,
    EngineConfig,
    NGramLookup,
    Request,
    RequestError,
    Sampling,
)
from axcore.layers import FIRST_SOFT_TOKEN
from axcore.models import transformer
from axcore.module import functional

TOKENIZER = ByteTokenizer.Config().build()
CFG = point_model(TOKENIZER.vocab_size)
MODEL = CFG.build()
STATE = MODEL.init(3)
RANDOM = np.random.default_rng(1)
POINTS = [RANDOM.normal(size=3).astype(np.float32) * 3 for _ in range(12)]
LENGTH = 40


def opened(**values):
    cfg = {
        "max_num_seqs": 2,
        "max_length": LENGTH,
        "page_size": 4,
        "num_decode_steps": 1,
        "max_num_batched_tokens": 8,
        "batch_size_buckets": (2,),
        "sampler_kinds": ("greedy",),
        **values,
    }
    return Engine(MODEL, STATE, TOKENIZER, EngineConfig(**cfg))


def request(points, text=b"xyzxyz", **values):
    soft = [FIRST_SOFT_TOKEN + n for n in range(len(points) * NUM_SOFT)]
    prompt = (256, *soft, *text)
    inputs = tuple(EncoderInput(POINTS[one]) for one in points)
    sampling = Sampling(temperature=0)
    values = {"max_tokens": 6, "ignores_end": True, **values}
    return Request(prompt=prompt, sampling=sampling, inputs=inputs, **values)


@jax.jit
def logits(tokens, points, place):
    return functional(MODEL, STATE, tokens, None, place, inputs=points, method="logits")[0]


def plain(asked):
    """Return what passes over all of the text sample, padded to one length."""
    points = jnp.asarray([[one.value for one in asked.inputs]])
    text = list(asked.prompt)
    for _ in range(asked.max_tokens):
        row = jnp.asarray([text + [0] * (LENGTH - len(text))], jnp.int32)
        found = logits(row, points, jnp.asarray([[len(text) - 1]], jnp.int32))
        text.append(int(jnp.argmax(found[0, 0])))
    return text[len(asked.prompt) :]


def answers(engine, requests):
    streams = [engine.submit(one) for one in requests]
    return [[token.id for token in stream.result().tokens] for stream in streams]


@pytest.fixture(scope="module")
def engine():
    with opened() as made:
        yield made


def test_answers_are_those_of_plain_passes(engine):
    """Also where several requests run at once, in pieces, and a text has several inputs."""
    requests = [request([0]), request([1, 2], text=b"ab"), request([3])]
    assert answers(engine, requests) == [plain(one) for one in requests]


def test_answers_depend_on_the_inputs(engine):
    assert len({tuple(one) for one in answers(engine, [request([n]) for n in range(5)])}) > 1


def test_the_prefix_cache_knows_inputs_by_what_they_are(engine):
    before = engine.stats().num_cached_prompt_tokens
    first = answers(engine, [request([4], text=b"shared")])
    assert engine.stats().num_cached_prompt_tokens == before
    # Equal numbers in another array.
    equal = attrs.evolve(request([4], text=b"shared"), inputs=(EncoderInput(POINTS[4].copy()),))
    assert answers(engine, [equal]) == first
    assert engine.stats().num_cached_prompt_tokens > before
    later = engine.stats().num_cached_prompt_tokens
    asked = request([0], text=b"shared")
    assert answers(engine, [asked]) == [plain(asked)]
    assert engine.stats().num_cached_prompt_tokens == later


def test_more_inputs_than_the_table_has_slots_come_one_after_the_other(engine):
    """The slot of an input is given to another; what was in it is encoded again."""
    assert engine._programs.encoder.num_slots == 8
    for asked in [request([n]) for n in (*range(12), 0, 1)]:
        assert answers(engine, [asked]) == [plain(asked)]


def test_text_alone_is_answered_as_before(engine):
    asked = Request(prompt=(256, 100), max_tokens=4, sampling=Sampling(temperature=0))
    assert answers(engine, [asked])[0] == plain(
        Request(
            prompt=(256, 100),
            max_tokens=4,
            inputs=(EncoderInput(POINTS[0]),),
        )
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": ()}, "the prompt has token 16777216"),
        (
            {"inputs": (EncoderInput(np.zeros(4, np.float32)),)},
            "the encoder takes float32 of shape",
        ),
        ({"inputs": (EncoderInput(np.zeros(3, np.int8)),)}, "input 0 is int8"),
        ({"inputs": (EncoderInput(POINTS[0]), EncoderInput(POINTS[1]))}, "each once and in order"),
        ({"prompt_logprobs": True}, "prompt_logprobs are of text alone"),
    ],
)
def test_what_cannot_be_answered_is_refused(engine, changes, words):
    with pytest.raises(RequestError, match=words):
        engine.submit(attrs.evolve(request([0]), **changes))


def test_a_model_of_text_refuses_inputs():
    text = transformer(
        vocab_size=TOKENIZER.vocab_size, dim=8, num_layers=1, num_heads=1, hidden_dim=8
    ).build()
    with Engine(text, text.init(0), TOKENIZER, EngineConfig(max_length=16)) as engine:
        asked = Request(prompt=(1,), max_tokens=1, inputs=(EncoderInput(POINTS[0]),))
        with pytest.raises(RequestError, match="the model reads text alone"):
            engine.submit(asked)


def test_more_requests_with_inputs_wait_than_the_table_has_slots():
    with opened(max_num_seqs=1, batch_size_buckets=(1,)) as engine:
        requests = [request([n], text=b"w" * (1 + n)) for n in range(12)] * 2
        assert answers(engine, requests) == [plain(one) for one in requests]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"enable_prefix_caching": False},
        {"page_size": None},
        {"fixed_shapes": True, "batch_size_buckets": None},
        {"speculation": NGramLookup(num_tokens=2)},
        {"num_decode_steps": 4},
        {"num_pages": 12, "max_num_seqs": 3, "batch_size_buckets": (3,)},
    ],
)
def test_every_kind_of_engine_answers_alike(changes):
    requests = [request([n], text=b"long text of a question"[: 8 + n]) for n in range(3)]
    with opened(**changes) as engine:
        assert answers(engine, requests) == [plain(one) for one in requests]


def test_new_weights_encode_inputs_again():
    other = MODEL.init(7)
    asked = request([2])
    with opened() as engine:
        answers(engine, [asked])
        engine.replace_weights(other)
        (found,) = answers(engine, [asked])
    with Engine(MODEL, other, TOKENIZER, engine.config) as fresh:
        assert answers(fresh, [asked]) == [found]
