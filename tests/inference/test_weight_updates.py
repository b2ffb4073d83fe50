"""Weights that a trainer changes: shared with it, released for it, in part, by versions."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from held_engines import busy
from next_letter import NextLetter, letter_chain

from axcore.config import replace_config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import Engine, EngineConfig, EngineError, Request, Sampling
from axcore.inference.cached_model import CachedModel
from axcore.inference.weights import ServedWeights
from axcore.layers import KVCacheConfig, ScannedLayers, Stack
from axcore.models import transformer
from axcore.module import ParamSpec
from axcore.ops import KernelPolicy, use_policy
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
SIZES = EngineConfig(
    max_num_seqs=2, max_length=32, page_size=8, max_num_batched_tokens=16, num_decode_steps=1
)
LETTERS = NextLetter.Config(vocab_size=TOKENIZER.vocab_size).build()
TEXTS = transformer(vocab_size=264, dim=16, num_layers=2, num_heads=2, hidden_dim=16).build()
CACHE = KVCacheConfig(num_rows=2, capacity=16, max_length=13)
MATRICES = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"decode_matmul": "portable"})
"""Of portable code, which reads weights as they are trained."""


def chain(text):
    return letter_chain(text, TOKENIZER.vocab_size)


def opened(text="ab"):
    return Engine(LETTERS, chain(text), TOKENIZER, SIZES)


def request(max_tokens=4):
    return Request(prompt=(ord("a"),), max_tokens=max_tokens, sampling=Sampling(temperature=0))


def pointers(tree):
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]


@pytest.fixture
def trained():
    """A step that takes the place of its state, as a trainer's does."""
    return jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 2.0, state), donate_argnums=0)


def test_a_completion_says_which_weights_sampled_each_token():
    with opened() as engine:
        first = engine.submit(request()).result(60)
        engine.replace_weights(chain("ac"))
        second = engine.submit(request()).result(60)
        engine.replace_weights(chain("ad"), version=70)
        assert (engine.weight_version, second.text) == (70, "caca")
        assert engine.submit(request()).result(60).weight_versions == ((0, 70),)
        assert (first.weight_versions, second.weight_versions) == (((0, 0),), ((0, 1),))


def test_a_token_has_the_version_of_its_call_though_weights_change_before_it_is_read():
    """The order of letters says which weights sampled each."""
    orders = {0: "abc", 5: "acb", 9: "abc"}
    with opened(orders[0]) as engine:
        with busy(engine):
            answer = engine.submit(request(20))
            with engine._changed:
                for version in (5, 9):
                    for _ in range(3):
                        engine._thread.send(engine._runner.step)
                    engine._thread.send(partial(replace, engine, orders[version], version))
        found = answer.result(60)
    assert [version for _, version in found.weight_versions] == [0, 5, 9]
    starts = dict(found.weight_versions)
    before = "a"
    for index, letter in enumerate(found.text):
        order = orders[starts[max(start for start in starts if start <= index)]]
        assert letter == order[(order.index(before) + 1) % 3], (index, found)
        before = letter


def replace(engine, text, version):
    engine._programs.replace_weights(chain(text))
    engine._runner.weight_version = version


def test_arrays_that_are_stored_as_needed_are_shared_and_not_copied():
    """Those of layers that are trained unrolled, where layers read them as they are trained."""
    cfg = replace_config(TEXTS.config, ScannedLayers, Stack.Config(num_layers=2))
    state = cfg.build().init(0)
    with use_policy(MATRICES):
        cached = CachedModel(cfg.build(), None, CACHE)
        weights = ServedWeights(cached.weights_of(state), cached.conversion)
    assert pointers(weights.value) == pointers(state)
    new = jax.tree.map(lambda leaf: leaf + 1, state)
    weights.replace(new)
    assert pointers(weights.value) == pointers(new)


def test_an_engine_whose_arrays_were_donated_says_so_until_new_ones_come(trained):
    state = chain("ab")
    with opened() as engine:
        engine.replace_weights(state)
        before = pointers(state)
        new = trained(state)
        assert pointers(new) == before, "the step copied: its state was held by someone"
        with pytest.raises(EngineError, match=r"1 of 1 arrays .* released, or deleted") as caught:
            engine.submit(request())
        assert "replace_weights" in caught.value.hint
        engine.replace_weights(new)
        assert engine.submit(request()).result(60).text == "baba"


def test_requests_that_run_while_arrays_are_donated_fail_with_the_reason(trained):
    state = chain("ab")
    with opened() as engine:
        engine.replace_weights(state)
        with busy(engine):
            answer = engine.submit(request())
            trained(state)
        with pytest.raises(EngineError, match=r"1 of 1 arrays .* released, or deleted"):
            answer.result(60)


def test_released_weights_are_held_by_nobody_else_and_come_back():
    with opened() as engine:
        engine.submit(request()).result(60)
        engine.release_weights()
        kept = jax.tree.leaves(engine._programs.weights.value)
        assert not any(isinstance(leaf, jax.Array) for leaf in kept)
        with pytest.raises(EngineError, match=r"1 of 1 arrays .* released"):
            engine.submit(request())
        engine.replace_weights(chain("ac"))
        assert engine.submit(request()).result(60).text == "caca"


def test_weights_are_not_released_under_requests():
    with opened() as engine:
        engine._submitted[-1] = None  # as a request that is on its way
        with pytest.raises(EngineError, match="requests are unfinished"):
            engine.release_weights()
        del engine._submitted[-1]
        assert engine.submit(request()).result(60).text == "baba"


@pytest.mark.parametrize("policy", [None, MATRICES], ids=["packed", "plain"])
def test_a_part_of_a_state_replaces_what_it_has_and_nothing_else(policy):
    def cached(state):
        return CachedModel(TEXTS, state, CACHE)

    with use_policy(policy or KernelPolicy(hardware=Hardware.parse("cpu-1"))):
        old, new = TEXTS.init(0), TEXTS.init(1)
        part = feed_forwards(new)
        conversion = cached(old).conversion
        conversion.check(part, is_partial=True)
        made = dict(conversion.arrays(part, is_partial=True))
        expected = dict(conversion.arrays(new))
    assert len(made) == 2 * 3
    assert all(np.array_equal(array, expected[path]) for path, array in made.items())


def feed_forwards(state):
    """Returns the feed-forward arrays of all layers, and no others."""
    layer = state["decoder"]["stack"]["layer"]
    return {"decoder": {"stack": {"layer": {"feed_forward": layer["feed_forward"]}}}}


def test_a_part_that_the_model_does_not_have_is_refused():
    with opened() as engine:
        with pytest.raises(ConfigError, match="the model has no array 'tabel'"):
            engine.replace_weights({"tabel": jnp.zeros((264, 264))}, is_partial=True)
        with pytest.raises(ConfigError, match="not those of the model"):
            engine.replace_weights({})
        engine.replace_weights({}, is_partial=True)
        assert engine.submit(request()).result(60).text == "baba"


def test_frozen_arrays_that_are_left_out_stay_what_they_were():
    with Engine(TEXTS, TEXTS.init(0), TOKENIZER, SIZES) as engine:
        before = jax.tree.leaves(engine._programs.weights.value)
        engine.replace_weights(feed_forwards(TEXTS.init(1)), is_partial=True)
        after = jax.tree.leaves(engine._programs.weights.value)
        assert sum(a is not b for a, b in zip(after, before, strict=True)) == 2 * 3


def test_what_an_engine_misses_is_what_trains_and_what_a_step_took_from_it(trained):
    def frozen(spec):
        return attrs.evolve(spec, is_frozen=".feed_forward." not in spec.name)

    specs = jax.tree.map(
        frozen, TEXTS.param_specs(), is_leaf=lambda one: isinstance(one, ParamSpec)
    )
    state = TEXTS.init(0)
    with Engine(TEXTS, state, TOKENIZER, SIZES) as engine:
        part = engine.missing_weights(state, specs)
        assert jax.tree.structure(part) == jax.tree.structure(feed_forwards(state))
        after = trained(state)  # donates the arrays that the engine shares: not those of layers
        part = engine.missing_weights(after, specs)
        assert set(part) == {"decoder", "head"}
        assert set(part["decoder"]["stack"]["layer"]) == {"feed_forward"}
        engine.replace_weights(part, is_partial=True)
        assert engine.submit(request()).result(60).text
