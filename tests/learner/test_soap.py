"""SOAP is its formula, and learns where directions are scaled unevenly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.learner import SOAP, AdamW, ConstantSchedule, Learner, LowPrecisionState, WarmupCosine
from axcore.module import Module, Param

RATE, B1, B2, EPSILON, DECAY, FREQUENCY = 0.1, 0.8, 0.9, 1e-6, 0.3, 3


class Square(Module):
    """A matrix and a vector."""

    def setup(self, cfg):
        self.matrix = Param((6, 5), axes=(None, None))
        self.vector = Param((5,), axes=(None,), init=0.5)


def formula(weight, gradients, *, left=True, right=True):
    """Returns a matrix after updates by SOAP, step by step as in its paper, in float64."""
    mean, second = np.zeros_like(weight), np.zeros_like(weight)
    factors = [np.zeros((dim, dim)) for dim in weight.shape]
    bases = [np.eye(dim) for dim in weight.shape]
    for t, g in enumerate(gradients):
        weight = weight * (1 - RATE * DECAY)
        if t > 0:
            rotated = bases[0].T @ g @ bases[1]
            mean = B1 * mean + (1 - B1) * g
            second = B2 * second + (1 - B2) * rotated**2
            divisor = np.sqrt(second / (1 - B2**t)) + EPSILON
            step = (bases[0].T @ mean @ bases[1]) / (1 - B1**t) / divisor
            weight = weight - RATE * bases[0] @ step @ bases[1].T
        for side, outer in enumerate((g @ g.T, g.T @ g)):
            factors[side] = B2 * factors[side] + (1 - B2) * outer
            if not (left, right)[side]:
                continue
            if t == 0:
                bases[side] = np.linalg.eigh(factors[side])[1][:, ::-1]
            elif t % FREQUENCY == 0:
                power = factors[side] @ bases[side]
                order = np.argsort(-np.sum(bases[side] * power, axis=0))
                second = np.take(second, order, axis=side)
                bases[side] = np.linalg.qr(power[:, order])[0]
    return weight


def adam(weight, gradients):
    """Returns a vector after updates by Adam, of which the first only measures."""
    mean, second = np.zeros_like(weight), np.zeros_like(weight)
    for t, g in list(enumerate(gradients))[1:]:
        mean, second = B1 * mean + (1 - B1) * g, B2 * second + (1 - B2) * g**2
        step = mean / (1 - B1**t) / (np.sqrt(second / (1 - B2**t)) + EPSILON)
        weight = weight - RATE * step
    return weight


def trained(gradients, **fields):
    """Returns the first and the last parameters, and the state."""
    optimizer = SOAP.Config(
        b1=B1, b2=B2, epsilon=EPSILON, weight_decay=DECAY, frequency=FREQUENCY, **fields
    )
    schedule = ConstantSchedule.Config(peak=RATE)
    cfg = Learner.Config(optimizer=optimizer, schedule=schedule, clip_norm=None)
    learner, model = cfg.build(total_steps=10), Square.Config().build()
    transformation = learner.transformation(learner.with_frozen(model.param_specs()))
    params = first = model.init(0)
    state = learner.init(transformation, params)
    for gradient in gradients:
        done = learner.update(transformation, gradient, state, params, loss=jnp.float32(1))
        params, state = done.params, done.opt_state
    return first, params, state


def drawn(num_steps):
    rng = np.random.default_rng(0)
    # Uneven rows, so that eigenvalues differ.
    return [
        {
            "matrix": (rng.normal(size=(6, 5)) * np.logspace(0, -1, 6)[:, None]).astype(np.float32),
            "vector": rng.normal(size=5).astype(np.float32),
        }
        for _ in range(num_steps)
    ]


@pytest.mark.parametrize("max_dim", [5, 4, 6])
@pytest.mark.slow
def test_updates_are_those_of_the_formula(max_dim):
    gradients = drawn(11)
    first, last, _ = trained(gradients, max_dim=max_dim)
    wide = [np.asarray(one["matrix"], np.float64) for one in gradients]
    expected = formula(
        np.asarray(first["matrix"], np.float64), wide, left=max_dim >= 6, right=max_dim >= 5
    )
    np.testing.assert_allclose(last["matrix"], expected, rtol=2e-3, atol=2e-4)
    expected = adam(np.asarray(first["vector"], np.float64), [one["vector"] for one in gradients])
    np.testing.assert_allclose(last["vector"], expected, rtol=1e-4, atol=1e-5)


def test_bases_stay_orthogonal_in_float32():
    _, _, (state, *_) = trained(drawn(8))
    for basis in (state.left_basis["matrix"], state.right_basis["matrix"]):
        assert basis.dtype == jnp.float32
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-5)
    assert state.left["vector"] is None


def test_a_large_dimension_has_no_factor():
    _, _, (state, *_) = trained(drawn(1), max_dim=5)
    assert state.left["matrix"] is None
    assert state.right["matrix"].shape == (5, 5)


class Square24(Module):
    """One matrix."""

    def setup(self, cfg):
        self.matrix = Param((24, 24), axes=(None, None))


def least_loss(optimizer, rate, num_steps=200):
    """Returns the last loss of a least squares problem with a condition of 10^6."""
    keys = jax.random.split(jax.random.key(0), 3)
    turn, back = (jnp.linalg.qr(jax.random.normal(k, (24, 24), jnp.float32))[0] for k in keys[:2])
    inputs, outputs = ((q * jnp.logspace(0, -1.5, 24)[None]) @ q.T for q in (turn, back))
    target = jax.random.normal(keys[2], (24, 24), jnp.float32)

    def loss_of(params):
        return jnp.sum((inputs @ (params["matrix"] - target) @ outputs) ** 2)

    schedule = WarmupCosine.Config(peak=rate, warmup_steps=5)
    cfg = Learner.Config(optimizer=optimizer, schedule=schedule, clip_norm=None)
    learner, model = cfg.build(total_steps=num_steps), Square24.Config().build()
    transformation = learner.transformation(model.param_specs())

    def step(carry, _):
        params, state = carry
        loss, gradients = jax.value_and_grad(loss_of)(params)
        done = learner.update(transformation, gradients, state, params, loss=loss)
        return (done.params, done.opt_state), loss

    params = model.init(0)
    start = (params, learner.init(transformation, params))
    return float(jax.jit(lambda s: jax.lax.scan(step, s, length=num_steps))(start)[1][-1])


@pytest.mark.slow
def test_uneven_directions_are_learned_faster_than_by_adamw_at_its_best_rate():
    rates = (0.1, 0.3, 1.0, 3.0)
    adamw = min(least_loss(AdamW.Config(weight_decay=0.0), rate) for rate in rates)
    soap = least_loss(SOAP.Config(weight_decay=0.0), 0.3)
    assert soap < adamw / 3


def test_fewer_bits_for_its_state_are_refused():
    cfg = Learner.Config(optimizer=LowPrecisionState.Config(optimizer=SOAP.Config()))
    with pytest.raises(ConfigError, match="SOAP needs its state in float32") as error:
        cfg.build(total_steps=200).transformation(Square.Config().build().param_specs())
    assert "AdamW" in error.value.hint
