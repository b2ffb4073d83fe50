"""Heads: logits and loss agree, capped or not, tied or not."""

import jax
import numpy as np
import pytest

from axcore.config import find_config, replace_config
from axcore.models import TiedHead, UntiedHead
from axcore.module import count_params, functional

DIM, VOCAB = 6, 11


@pytest.fixture(scope="module")
def inputs():
    generator = np.random.default_rng(0)
    normal = lambda *shape: generator.normal(size=shape).astype(np.float32)  # noqa: E731
    targets = generator.integers(0, VOCAB, (2, 5)).astype(np.int32)
    weights = generator.uniform(size=(2, 5)).astype(np.float32)
    return normal(2, 5, DIM), normal(VOCAB, DIM), targets, weights


@pytest.mark.parametrize("kind", [UntiedHead, TiedHead])
@pytest.mark.parametrize(("soft_cap", "z_loss"), [(None, 0.0), (1.5, 0.0), (None, 0.1), (1.5, 0.1)])
def test_loss_is_the_cross_entropy_of_the_logits(inputs, kind, soft_cap, z_loss):
    x, table, targets, weights = inputs
    head = kind.Config(dim=DIM, vocab_size=VOCAB, soft_cap=soft_cap, z_loss=z_loss).build()
    state = head.init(0)

    @jax.jit
    def both(state, x, table, targets, weights):
        logits, _ = functional(head, state, x, table)
        call = lambda x: functional(head, state, x, table, targets, weights, method="loss")  # noqa: E731
        pair, outputs = call(x)
        total = lambda x: call(x)[0][0] / call(x)[0][1] + call(x)[1].total_loss()  # noqa: E731
        return logits, pair, outputs.losses, jax.value_and_grad(total)(x)

    logits, pair, losses, (total, gradient) = both(state, x, table, targets, weights)
    projection = (table if kind is TiedHead else np.asarray(state["weight"])).T
    raw = x.astype(np.float64) @ projection
    expected = raw if soft_cap is None else soft_cap * np.tanh(raw / soft_cap)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    log_normaliser = np.log(np.exp(expected).sum(-1))
    picked = np.take_along_axis(expected, targets[..., None], -1)[..., 0]
    loss, count = (weights * (log_normaliser - picked)).sum(), weights.sum()
    np.testing.assert_allclose(pair, (loss, count), rtol=1e-5)
    squares = (weights * log_normaliser**2).sum()
    found = [(one.sum, one.weight, one.scale, one.is_regularizer) for one in losses.values()]
    np.testing.assert_allclose(found, [(squares, count, z_loss, True)] if z_loss else [], rtol=1e-5)
    np.testing.assert_allclose(total, (loss + z_loss * squares) / count, rtol=1e-5)
    step, direction = 1e-2, np.sign(gradient)
    moved = [both(state, x + s * direction, table, targets, weights)[3][0] for s in (step, -step)]
    slope = (float(moved[0]) - float(moved[1])) / (2 * step)
    assert slope == pytest.approx(float(np.abs(gradient).sum()), rel=2e-2)


def test_tied_head_is_a_head_that_holds_the_table(run, cfg, batch):
    """Equal logits and loss; the table's gradient is the sum of those of its two uses."""
    tied = replace_config(cfg, UntiedHead, TiedHead.Config())
    assert not find_config(tied, UntiedHead)
    state = run.state(tied)
    assert "head" not in state
    untied = {**state, "head": {"weight": state["decoder"]["embedding"]["weight"]}}
    got, expected = run(tied, state, batch), run(cfg, untied, batch)
    np.testing.assert_allclose(got["logits"], expected["logits"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got["total"], expected["total"], rtol=1e-6)
    as_input = expected["gradient"]["decoder"]["embedding"]["weight"]
    as_output = expected["gradient"]["head"]["weight"]
    np.testing.assert_allclose(
        got["gradient"]["decoder"]["embedding"]["weight"],
        as_input + as_output,
        rtol=1e-4,
        atol=1e-6,
    )


def test_tied_head_saves_one_table(cfg):
    tied = replace_config(cfg, UntiedHead, TiedHead.Config())
    saved = count_params(cfg.build().param_specs()) - count_params(tied.build().param_specs())
    assert saved == 17 * 16
