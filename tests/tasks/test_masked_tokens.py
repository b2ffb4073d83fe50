"""Masked tokens: which are hidden, that padding changes nothing, and that a model learns them."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.config import update_config
from axcore.data import TextFiles
from axcore.errors import ConfigError
from axcore.experiments.masked import tiny_bert
from axcore.models import bert, llama2
from axcore.module import ArraySpec, BatchSpec, functional
from axcore.tasks import MaskedTokens
from axcore.testing import trainer_on
from axcore.trainer import StepsDone

MASK, FRAME = 259, (256, 257)
TASK = MaskedTokens.Config(mask_token=MASK, special_tokens=FRAME, num_random=200)
MODEL = update_config(bert("toy"), {"dim": 16, "**.num_heads": 2, "**.hidden_dim": 16})


def hide(tokens, is_real=None, *, step=None, **fields):
    """What the model sees, and which tokens are hidden; in an evaluation, or in a step."""
    task = update_config(TASK, fields).build(model=MODEL)
    how = {} if step is None else {"rng": jax.random.key(step), "training": True}
    args = jnp.asarray(tokens), None if is_real is None else jnp.asarray(is_real)
    return tuple(map(np.asarray, functional(task, {}, *args, method="hide", **how)[0]))


def texts(rows, length):
    return np.random.default_rng(0).integers(200, 258, (rows, length)).astype(np.int32)


def test_as_many_are_hidden_and_in_such_ways_as_asked():
    tokens = texts(64, 512)
    seen, is_hidden = hide(tokens)
    may_hide = tokens < 256
    assert not is_hidden[~may_hide].any()
    assert np.mean(is_hidden[may_hide]) == pytest.approx(0.15, abs=0.01)
    now, before = seen[is_hidden], tokens[is_hidden]
    shares = (now == MASK).mean(), (now < 200).mean(), (now == before).mean()
    assert shares == pytest.approx((0.8, 0.1, 0.1), abs=0.02)
    assert len(np.unique(now[now < 200])) > 150
    np.testing.assert_array_equal(seen[~is_hidden], tokens[~is_hidden])


def test_all_or_nothing_is_hidden_where_that_is_asked():
    tokens = texts(2, 64)
    assert not hide(tokens, fraction=0.0)[1].any()
    seen, is_hidden = hide(tokens, fraction=1.0, masked=1.0, randomized=0.0)
    np.testing.assert_array_equal(is_hidden, tokens < 256)
    assert (seen[is_hidden] == MASK).all()


def test_what_is_hidden_depends_on_the_row_and_in_training_on_the_step():
    tokens = texts(4, 64)
    order = np.array([2, 0, 3, 1])
    for step in (None, 1):
        whole, moved = hide(tokens, step=step), hide(tokens[order], step=step)
        np.testing.assert_array_equal(whole[0][order], moved[0])
    first, again, other = (hide(tokens, step=step)[1] for step in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (hide(tokens)[1][0] != hide(tokens)[1][1]).any()


def packed(length, pad_id, rows=2):
    """Two rows: two documents, and one with padding behind it; perhaps more rows of padding."""
    draw = np.random.default_rng(1)
    tokens = np.full((rows, length), pad_id, np.int32)
    positions, segments = np.zeros_like(tokens), np.zeros_like(tokens)
    for row, document, begin, end in ((0, 1, 0, 8), (0, 2, 8, 16), (1, 1, 0, 11)):
        tokens[row, begin:end] = draw.integers(0, 200, end - begin)
        positions[row, begin:end] = np.arange(end - begin)
        segments[row, begin:end] = document
    arrays = {"tokens": tokens, "positions": positions, "segment_ids": segments}
    unread = {"targets": tokens, "loss_weights": np.zeros(tokens.shape, np.float32)}
    return jax.tree.map(jnp.asarray, arrays | unread)


def test_padding_and_its_rows_change_neither_loss_nor_gradient():
    task = update_config(TASK, {"fraction": 0.5}).build(model=MODEL)
    state = jax.tree.map(jnp.asarray, numpy_state(task.param_specs()))

    @jax.jit
    def run(state, batch):
        def loss(state):
            rng = jax.random.key(3)
            outputs = functional(task, state, batch, rng=rng, training=True)[1]
            return outputs.total_loss(), outputs.losses

        return jax.value_and_grad(loss, has_aux=True)(state)

    small, large = (run(state, packed(*size)) for size in ((16, 5), (24, 9, 3)))
    assert float(small[0][1]["cross_entropy"].weight) > 8
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), small, large)


def test_the_loss_is_that_of_hidden_tokens_alone():
    task = TASK.build(model=MODEL)
    state = jax.tree.map(jnp.asarray, numpy_state(task.param_specs()))
    batch = packed(16, 0)
    losses = functional(task, state, batch)[1].losses
    seen, is_hidden = hide(batch["tokens"], batch["segment_ids"] > 0)
    assert is_hidden.any()
    given = {"tokens": jnp.asarray(seen), "targets": batch["tokens"]}
    weights = {"loss_weights": jnp.asarray(is_hidden, jnp.float32)}
    total, weight = functional(task.model, state, batch | given | weights)[0]
    assert float(losses["cross_entropy"].sum) == pytest.approx(float(total), rel=1e-5)
    assert float(losses["cross_entropy"].weight) == float(weight) == is_hidden.sum()
    assert losses["accuracy"].scale == 0


SPEC = BatchSpec(
    unit="token",
    num_units=16,
    arrays={
        name: ArraySpec(shape=(2, 8), axes=("batch", "time"), dtype=dtype, num_values=size)
        for name, dtype, size in (
            ("tokens", "int32", 259),
            ("targets", "int32", 259),
            ("positions", "int32", None),
            ("loss_weights", "float32", None),
        )
    },
)


def test_a_model_that_predicts_the_next_token_is_refused():
    with pytest.raises(ConfigError, match="trains a MaskedLM, and the model is a CausalLM"):
        TASK.build(model=llama2("toy")).check_batch(SPEC)


def test_a_mask_token_that_the_model_lacks_is_refused():
    TASK.build(model=MODEL).check_batch(SPEC)
    task = update_config(TASK, {"mask_token": 264}).build(model=MODEL)
    with pytest.raises(ConfigError, match=r"the model has 264 tokens[\s\S]*vocab_size=265"):
        task.check_batch(SPEC)


def test_shares_that_are_more_than_all_are_refused():
    with pytest.raises(ConfigError, match=r"masked is 0.8 and randomized 0.3: more than all"):
        update_config(TASK, {"randomized": 0.3}).build(model=MODEL)


@pytest.fixture
def words(tmp_path):
    """Texts of ten words of one length, so that a byte follows from its neighbours."""
    draw = np.random.default_rng(0)
    known = [
        "alpha",
        "bravo",
        "delta",
        "golfs",
        "hotel",
        "india",
        "limas",
        "oscar",
        "romeo",
        "tango",
    ]
    for number in range(40):
        text = " ".join(draw.choice(known, 200))
        (tmp_path / f"{number:02}.txt").write_text(text)
    return TextFiles.Config(folder=str(tmp_path), glob="*.txt")


def small(words, num_devices=1, **changes):
    shapes = {
        "model.dim": 32,
        "**.feed_forward.hidden_dim": 64,
        "**.num_heads": 2,
        "data.source": words,
        "data.seq_len": 32,
        "data.validation_batches": 2,
        "data.validation_fraction": 0.1,
        "logging.every_steps": 1,
    }
    return trainer_on(update_config(tiny_bert(), shapes | changes), num_devices)


@pytest.mark.slow
def test_the_small_bert_learns_what_is_hidden(words, tmp_path):
    steps = {"max_steps": 240, "eval_every_steps": 240, "checkpoint.every_steps": 240}
    result = small(words, **steps).run(tmp_path / "run", quiet=True)
    # The commonest byte, the space, is one in six.
    assert result.validation["accuracy"] > 0.6


@pytest.mark.slow
def test_a_run_that_is_stopped_resumes_to_the_same_bits(words, tmp_path):
    def stop_at_three(event):
        if isinstance(event, StepsDone) and event.step == 3:
            signal.raise_signal(signal.SIGTERM)

    trainer = small(words, max_steps=6, eval_every_steps=6)
    whole = trainer.run(tmp_path / "whole", quiet=True)
    trainer.run(tmp_path / "parts", [stop_at_three], returns_when_stopped=True, quiet=True)
    resumed = trainer.run(tmp_path / "parts", quiet=True)
    assert resumed.validation == whole.validation
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.state, resumed.state))


@pytest.mark.slow
def test_a_mesh_hides_the_same_tokens_and_learns_the_same(words, tmp_path):
    steps = {"max_steps": 2, "eval_every_steps": 2}
    one = small(words, **steps).run(tmp_path / "one", quiet=True)
    mesh = {"fsdp": 2, "model": 2}
    four = small(words, 4, mesh=mesh, **steps).run(tmp_path / "four", quiet=True)
    assert one.validation == pytest.approx(four.validation, rel=1e-4)
