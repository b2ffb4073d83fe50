"""Routing replay: updates keep the experts of the weights that sampled, token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import REQUIRED, config, update_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import packed_rows, whole_rows
from axcore.layers.routes import RECORDED_ROUTES, REPLAYED_ROUTES, Routes, routes_of_token
from axcore.models import llama2, mixtral
from axcore.module import Module, functional
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks import GRPO, SamplerCorrection

MODEL = update_config(
    mixtral("toy"), {"dim": 16, "**.hidden_dim": 16, "**.num_heads": 2, "**.num_kv_heads": 1}
)
SIZES = (3, 5, 1, 7)


def state_of(spread=0.0):
    draw, first = np.random.default_rng(1), numpy_state(MODEL.build().param_specs())
    move = lambda leaf: leaf + draw.normal(0, spread, leaf.shape) if spread else leaf  # noqa: E731
    return jax.tree.map(lambda leaf: jnp.asarray(move(leaf), jnp.float32), first)


def rollout_batch(length=12):
    draw = np.random.default_rng(0)
    rows = [
        Rollout(
            prompt=(70, 71, 72)[: 2 + row % 2],
            tokens=tuple(draw.integers(9, 250, size).tolist()),
            log_probs=(-5.5,) * size,
            is_ended=True,
            rewards={},
            reward=float(row % 3),
            group=row // 2,
            sample=row % 2,
            weight_version=0,
        )
        for row, size in enumerate(SIZES)
    ]
    return jax.tree.map(jnp.asarray, batch_of(rows, length, 0, ()))


@functools.cache
def recorded(length=12):
    task = GRPO.Config(routing_replay=True).build(model=MODEL)
    run = jax.jit(lambda state, batch: functional(task, state, batch, method="record")[0])
    found = jax.device_get(run(state_of(), rollout_batch(length)))
    task.check_recorded(found)
    return found


def experts_used(task, state, batch):
    """The experts of each token at each router, `[batch, time, routers, choices]`."""

    def run(state, batch):
        return functional(task, state, batch, capture=["**.router"])[1].captures

    captures = jax.jit(run)(state, batch)
    (routing,) = captures.values()  # of a scan: layers first
    return np.moveaxis(np.asarray(routing.experts), 0, 2)


def replaying(batch, **changes):
    found = recorded()
    return {**batch, "old_log_probs": found["old_log_probs"], "routes": found["routes"], **changes}


@pytest.mark.slow
def test_an_update_uses_the_recorded_experts_though_the_weights_have_moved():
    batch, moved = rollout_batch(), state_of(0.2)
    is_real, wanted = np.asarray(batch["token_mask"]), recorded()["routes"]
    replay = GRPO.Config(routing_replay=True).build(model=MODEL)
    np.testing.assert_array_equal(
        experts_used(replay, moved, replaying(batch))[is_real], wanted[is_real]
    )
    free = experts_used(GRPO.Config().build(model=MODEL), moved, batch)
    assert np.any(free[is_real] != wanted[is_real]), "the weights did not move far enough"


@pytest.mark.slow
def test_the_ratio_of_the_first_update_is_1():
    """Loss and gradient are those of a ratio to the update's own log-probabilities."""
    task = GRPO.Config(routing_replay=True, sampler=SamplerCorrection(max_ratio=None))
    task = task.build(model=MODEL)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(state, batch):
        _, out = functional(task, state, batch)
        return out.total_loss(), out.losses["clip_fraction"].sum

    batch = replaying(rollout_batch())
    found = run(state_of(), batch)
    own = {name: one for name, one in batch.items() if name != "old_log_probs"}
    assert_same_to_rounding(found, run(state_of(), own))
    assert float(found[0][1]) == 0


class LogProbs(Module):
    """Log-probabilities of a model that takes routes, and the routes that it took."""

    wraps = "model"

    @config
    class Config(Module.Config["LogProbs"]):
        model: Module.Config = REQUIRED

    def setup(self, cfg):
        self.model = cfg.model.build()

    def forward(self, tokens, targets, info, channel, experts):
        with self.with_shared(channel, Routes.of(experts)):
            found = self.model.log_probs(tokens, targets, info)
            return found, self.get_shared(channel)


def run_with(channel, state, tokens, info, experts):
    module = LogProbs.Config(model=MODEL).build()

    def run(state, experts):
        return functional(module, state, tokens, tokens, info, channel, experts)[0]

    return jax.device_get(jax.jit(run)(state, experts))


@pytest.mark.slow
@pytest.mark.parametrize("channel", [RECORDED_ROUTES, REPLAYED_ROUTES])
def test_routes_of_packed_rows_are_those_of_each_document_by_itself(channel):
    """And padding may have any experts: a token is served by its own, wherever it is in a row."""
    draw, lengths = np.random.default_rng(0), (5, 3)
    documents = [draw.integers(9, 250, length) for length in lengths]
    token = routes_of_token(MODEL.build())
    alone = np.zeros((2, 6), np.int32)
    for row, one in enumerate(documents):
        alone[row, : len(one)] = one
    mask = np.arange(6) < np.array(lengths)[:, None]
    experts = draw.integers(0, 2, (2, 6, *token.shape[:1], 1)).astype(token.dtype)
    experts = np.concatenate([experts, experts + 1], axis=-1)  # two different ones
    packed = {
        "tokens": np.concatenate([*documents, [0, 0]])[None].astype(np.int32),
        "positions": np.array([[*range(5), *range(3), 0, 0]], np.int32),
        "segment_ids": np.array([[1] * 5 + [2] * 3 + [0] * 2], np.int32),
    }
    in_a_row = np.concatenate([experts[0, :5], experts[1, :3], experts[0, :2]])[None]
    state = state_of(0.2)
    info = whole_rows(*map(jnp.asarray, (alone, mask)))
    wanted, routes = run_with(channel, state, jnp.asarray(alone), info, jnp.asarray(experts))
    arrays = jax.tree.map(jnp.asarray, packed)
    found, in_row = run_with(
        channel, state, arrays["tokens"], packed_rows(arrays), jnp.asarray(in_a_row)
    )
    places = [slice(0, 5), slice(5, 8)]
    for row, (length, place) in enumerate(zip(lengths, places, strict=True)):
        np.testing.assert_allclose(found[0, place], wanted[row, :length], atol=1e-5)
        np.testing.assert_array_equal(in_row.experts[0, place], routes.experts[row, :length])
    assert np.all(routes.router == token.shape[0])


def test_routers_are_counted_by_the_layers_that_run():
    assert routes_of_token(MODEL.build()).shape == (2, 2)
    assert routes_of_token(llama2("toy").build()).shape == (0, 0)


def test_a_router_reads_what_it_wrote_whatever_others_choose():
    """One with fewer choices than another leaves the rest empty."""
    first, second = jnp.array([[[3, 1]]]), jnp.array([[[2]]])
    routes = Routes.of(jnp.zeros((1, 1, 2, 2), jnp.uint8)).written(first).written(second)
    rest, found = Routes.of(routes.experts).read(2)
    np.testing.assert_array_equal(found, first)
    np.testing.assert_array_equal(rest.read(1)[1], second)


def test_a_model_that_runs_a_router_twice_is_refused():
    """Its choices would go to other layers without a word."""
    task = GRPO.Config(routing_replay=True).build(model=MODEL)
    found = {"routes": np.zeros((1, 4, 2, 2), np.uint8), "num_routers": np.array([3])}
    with pytest.raises(ModuleError, match="2 routers, but 3 ran"):
        task.check_recorded(found)


def test_replay_without_routers_is_refused():
    from axcore.rollouts.experiments import grpo_reverse
    from axcore.testing import trainer_on

    cfg = update_config(grpo_reverse(), {"mesh": {"fsdp": 1}, "task.routing_replay": True})
    with pytest.raises(ConfigError, match="no router"):
        trainer_on(cfg, 1)
