"""Decoders that attend over an encoder's tokens: their caches obey the law, and texts are those."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_audio.models import whisper
from cache_law import (
    CACHE_CONFIG,
    MORE_ROWS,
    NUM_TEXTS,
    PAGED,
    Seats,
    calls_of,
    drawn_split,
    texts,
    token_by_token,
    used_before,
)
from numpy_state import numpy_state

from axcore.errors import ConfigError, ModuleError
from axcore.inference import Seq2SeqGenerator
from axcore.inference.cached_model import CachedModel
from axcore.layers import SourceKVCacheConfig
from axcore.models import t5, t5_v1_1
from axcore.modifiers import NAMED_WEIGHTS
from axcore.module import functional

SOURCE_LENGTH = 30


def t5_inputs(rng):
    """Sources of 11 tokens, of which some are padding."""
    lengths = np.array([[11], [4], [8]])
    return rng.integers(3, 264, (3, 11)).astype(np.int32), np.arange(11) < lengths


def t5_logits(model, state, inputs, tokens):
    """Of what the decoder reads; `logits` is called with what follows each."""
    target = jnp.roll(tokens, -1, axis=1)
    return functional(model, state, inputs[0], target, inputs[1], method="logits")[0]


def whisper_inputs(rng):
    sounds = 0.3 * rng.standard_normal((3, 9600)).astype(np.float32)
    return sounds, np.array([9600, 3000, 5000], np.int32)


def whisper_logits(model, state, inputs, tokens):
    features = functional(model.features, {}, *inputs)[0]
    return functional(model, state, features, tokens, method="logits")[0]


FAMILIES = {
    "t5": (t5("toy"), t5_inputs, t5_logits),
    "t5_v1_1": (t5_v1_1("toy"), t5_inputs, t5_logits),
    "whisper": (whisper("toy"), whisper_inputs, whisper_logits),
}


def model_of(family):
    cfg, inputs, logits = FAMILIES[family]
    model = cfg.build()
    return model, jax.tree.map(jnp.asarray, numpy_state(model.param_specs())), inputs, logits


def assert_law(family, cache_config, *, weights=None, tolerance=2e-5, num_splits=3):
    """Compares splits with the plain forward pass; with low-precision weights, within a bound."""
    model, state, inputs_of, logits_of = model_of(family)
    rng = np.random.default_rng(3)
    tokens, inputs = texts(model.config, rng), inputs_of(rng)
    tokens[:, 0] = 0  # T5's `start_token`
    given = attrs.asdict(cache_config, recurse=False)
    size = SourceKVCacheConfig(**given, source_length=SOURCE_LENGTH)
    quantization = NAMED_WEIGHTS[weights] if weights else None
    cached = CachedModel(model, state, size, quantization=quantization)
    plain = np.asarray(jax.jit(logits_of, static_argnums=0)(model, state, inputs, tokens))
    caches, encode = cached.empty_caches(), jax.jit(cached.encode)
    for number in range(num_splits):
        split = drawn_split(rng) if number else token_by_token()
        seats = Seats.drawn(size, rng)
        slots = seats.slots if seats.of(np.arange(3), np.zeros(3)) else np.arange(3)
        caches = encode(cached.weights, jax.tree.map(used_before, caches), inputs, slots)
        for call in calls_of(split, seats, tokens):
            logits, caches = call.run(cached, caches, seats)
            is_read = call.new > 0
            wanted = plain[call.texts % NUM_TEXTS, call.done + call.new - 1]
            if weights:
                tolerance = 0.03 * np.abs(plain).max()
            np.testing.assert_allclose(
                logits[is_read], wanted[is_read], rtol=1e-5, atol=tolerance, err_msg=str(call)
            )


@pytest.mark.parametrize(
    ("family", "cache_config"),
    [("t5", MORE_ROWS), ("t5", PAGED), ("t5_v1_1", CACHE_CONFIG), ("whisper", MORE_ROWS)],
)
def test_any_split_of_a_text_gives_the_logits_of_the_whole_decoder(family, cache_config):
    assert_law(family, cache_config)


@pytest.mark.slow
@pytest.mark.parametrize("cache_config", [CACHE_CONFIG, MORE_ROWS, PAGED])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_split_does_so_by_every_layout(family, cache_config):
    assert_law(family, cache_config, num_splits=8)


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_weights_of_8_bits_change_logits_by_a_few_percent(family):
    assert_law(family, MORE_ROWS, weights="int8", num_splits=2)


def decoded_again(logits_of, model, state, inputs, num_tokens, end):
    """Greedy texts, all of the text read for each token."""
    program = jax.jit(logits_of, static_argnums=0)
    tokens = np.full((3, num_tokens + 1), end, np.int32)
    tokens[:, 0] = 0
    for place in range(num_tokens):
        best = np.asarray(program(model, state, inputs, tokens))[:, place].argmax(-1)
        is_over = (tokens[:, 1 : place + 1] == end).any(1)
        tokens[:, place + 1] = np.where(is_over, end, best)
    return tokens[:, 1:]


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_greedy_texts_are_those_of_the_whole_decoder(family):
    model, state, inputs_of, logits_of = model_of(family)
    inputs = inputs_of(np.random.default_rng(5))
    wanted = decoded_again(logits_of, model, state, inputs, 12, end=1)
    sizes = {"num_rows": 3, "max_tokens": 13, "source_length": SOURCE_LENGTH, "end": 1}
    generator = Seq2SeqGenerator(model, **sizes)
    for size in (1, 5):  # a prompt is read at once
        prompt = np.concatenate([np.zeros((3, 1), np.int32), wanted], axis=1)[:, :size]
        caches = generator.encode(state, inputs)
        found, is_text = generator.generate(state, caches, prompt)
        np.testing.assert_array_equal(found, wanted[:, size - 1 :])
        assert is_text.shape == found.shape


def test_other_weights_write_other_texts():
    model, state, inputs_of, _ = model_of("t5")
    generator = Seq2SeqGenerator(model, num_rows=3, max_tokens=8, source_length=11, end=1)
    inputs, prompt = inputs_of(np.random.default_rng(5)), np.zeros((3, 1), np.int32)
    one, two = (
        generator.generate(each, generator.encode(each, inputs), prompt)[0]
        for each in (state, model.init(4))
    )
    assert (one != two).any()


def test_what_does_not_fit_is_refused():
    model, state, inputs_of, _ = model_of("t5")
    with pytest.raises(ConfigError, match="does not say how many there are"):
        CachedModel(model, state, CACHE_CONFIG)
    generator = Seq2SeqGenerator(model, num_rows=3, max_tokens=8, source_length=6, end=1)
    inputs = inputs_of(np.random.default_rng(0))
    with pytest.raises(ModuleError, match="a source has 11 tokens; the cache takes 6"):
        generator.encode(state, inputs)
    caches = generator.encode(state, (inputs[0][:, :5], inputs[1][:, :5]))
    with pytest.raises(ConfigError, match="rows have 9 tokens after 0"):
        generator.read(state, caches, np.zeros((3, 9), np.int32))


def test_keys_of_the_source_take_what_they_are_meant_to():
    size = SourceKVCacheConfig(num_rows=2, capacity=8, max_length=8, source_length=7)
    cached = CachedModel(t5("toy").build(), None, size)
    heads, layers = 4 * 12, 2
    floats = layers * 2 * 2 * heads * (8 + 7)
    assert cached.cache_bytes == 4 * (floats + layers * 2 * 7)
