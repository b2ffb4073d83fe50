"""T5: as many parameters as published, no number from padding, and a reversal that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy_state import numpy_state

from axcore.config import from_json, to_json, update_config
from axcore.errors import ConfigError
from axcore.inference import Seq2SeqGenerator
from axcore.models import t5, t5_v1_1
from axcore.module import ArraySpec, BatchSpec, count_params, functional

PUBLISHED = {
    (t5, "small"): 60_506_624,
    (t5, "base"): 222_903_552,
    (t5_v1_1, "small"): 76_961_152,
    (t5_v1_1, "base"): 247_577_856,
}
FAMILIES = (t5, t5_v1_1)
DRAW = np.random.default_rng(0)


def called(part):
    return getattr(part, "__name__", part)


@pytest.mark.parametrize(("family", "size"), PUBLISHED, ids=called)
def test_a_family_has_as_many_parameters_as_published(family, size):
    assert count_params(family(size).build().param_specs()) == PUBLISHED[family, size]


def batch_of(length=9, rows=2):
    """Rows of sources with 9 tokens and with 6; what is behind them is another number each time."""
    draw = np.random.default_rng(3)
    source, target = (draw.integers(2, 264, (2, size)).astype(np.int32) for size in (9, 5))
    padded = np.full((rows, length), length, np.int32)
    padded[:2, :9] = source
    mask = np.zeros((rows, length), bool)
    mask[0, :9], mask[1, :6] = True, True
    padded = np.where(mask, padded, length)
    targets = np.zeros((rows, 5), np.int32)
    targets[:2] = target
    return {
        "source": jnp.asarray(padded),
        "source_mask": jnp.asarray(mask),
        "target": jnp.asarray(targets),
        "target_mask": jnp.asarray(np.arange(5) < np.array([[5], [3], *[[0]] * (rows - 2)])),
    }


@pytest.mark.parametrize("family", FAMILIES, ids=called)
def test_padding_and_its_rows_change_neither_loss_nor_gradient(family):
    assert from_json(to_json(family("toy"))) == family("toy")
    model = family("toy").build()
    state = jax.tree.map(jnp.asarray, numpy_state(model.param_specs()))

    @jax.jit
    def run(state, batch):
        def loss(state):
            total, weight = functional(model, state, batch)[0]
            return total / weight

        return jax.value_and_grad(loss)(state)

    small, large = (run(state, batch_of(*size)) for size in ((9,), (14, 3)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), small, large)


def test_a_token_is_predicted_from_those_before_it_and_all_of_the_source():
    model = t5("toy").build()
    state = jax.tree.map(jnp.asarray, numpy_state(model.param_specs()))
    batch = batch_of()
    run = jax.jit(lambda *args: functional(model, state, *args, method="logits")[0])
    args = batch["source"], batch["target"], batch["source_mask"]
    first = run(*args)
    later = run(args[0], args[1].at[:, 2].add(1), args[2])
    np.testing.assert_allclose(first[:, :3], later[:, :3], atol=1e-5)
    assert np.abs(first - later)[:, 3:].max() > 1e-4
    other = run(args[0].at[:, 5].add(1), *args[1:])
    assert (np.abs(first - other).max((1, 2)) > 1e-4).all()


@pytest.mark.slow
def test_a_small_one_learns_to_reverse_and_writes_what_it_learned():
    model = update_config(t5("toy"), {"vocab_size": 12}).build()
    state = jax.jit(model.init)(jax.random.key(0))
    optimizer = optax.adam(1e-2)

    def batch(seed):
        tokens = jax.random.randint(jax.random.key(seed), (64, 5), 2, 12)
        ended = jnp.pad(tokens[:, ::-1], ((0, 0), (0, 1)), constant_values=1)
        mask = jnp.ones(tokens.shape, bool)
        return {
            "source": tokens,
            "source_mask": mask,
            "target": ended,
            "target_mask": jnp.ones(ended.shape, bool),
        }

    @jax.jit
    def step(state, moments, batch):
        def loss(state):
            total, weight = functional(model, state, batch, training=True)[0]
            return total / weight

        value, gradient = jax.value_and_grad(loss)(state)
        with jax.numpy_dtype_promotion("standard"):  # optax counts its steps in integers
            updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(state, updates), moments, value

    moments = optimizer.init(state)
    for seed in range(500):
        state, moments, value = step(state, moments, batch(seed))
    assert value < 0.3  # chance gives 2.3
    given = batch(999)
    generator = Seq2SeqGenerator(model, num_rows=64, max_tokens=7, source_length=5, end=1)
    caches = generator.encode(state, (given["source"], given["source_mask"]))
    found, is_text = generator.generate(state, caches, np.zeros((64, 1), np.int32))
    assert np.mean(found == given["target"]) > 0.75
    assert np.mean(is_text.sum(1) == 5) > 0.75


def test_a_batch_of_one_text_is_refused():
    spec = ArraySpec(shape=(2, 8), axes=("batch", "time"), dtype="int32", num_values=259)
    batch = BatchSpec(arrays={"tokens": spec}, unit="row", num_units=2)
    with pytest.raises(ConfigError, match="trained on source, source_mask, target, target_mask"):
        t5("toy").build().check_batch(batch)
