"""Losses of experts in a trained step: through scan, remat and accumulation, always there."""

import jax
import numpy as np
import optax
import pytest

from axcore.config import replace_config, update_config
from axcore.layers import CapacityLimited, Dropless, FeedForward, MoE, Router
from axcore.learner import Learner, WarmupCosine
from axcore.models import transformer
from axcore.module import Remat
from axcore.trainer.step import TrainStep

VOCAB, ROWS, TIME = 32, 4, 8
LAYER = "decoder.stack.layer.feed_forward.router"
KINDS = {"dropless": Dropless.Config(), "capacity": CapacityLimited.Config(factor=1.0)}


def model(dispatch, remat=None):
    dense = transformer(vocab_size=VOCAB, dim=8, num_layers=2, num_heads=2, hidden_dim=8)
    router = Router.Config(balance_loss=0.5, z_loss=0.1)
    sparse = replace_config(
        dense,
        FeedForward,
        lambda ffn: MoE.Config(
            expert=ffn, num_experts=4, top_k=2, router=router, dispatch=dispatch
        ),
    )
    return update_config(sparse, {"decoder.stack.layer.remat": remat})


def batch():
    draw = np.random.default_rng(0)
    is_real = np.arange(TIME)[None] < np.array([8, 3, 0, 5])[:, None]
    return {
        "tokens": draw.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "targets": draw.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "positions": np.where(is_real, np.arange(TIME), 0).astype(np.int32),
        "segment_ids": is_real.astype(np.int32),
        "loss_weights": is_real.astype(np.float32),
    }


def after_one_step(cfg, count=1):
    learner = Learner.Config(schedule=WarmupCosine.Config(warmup_steps=1)).build(total_steps=9)
    step = TrainStep(cfg.build(), learner, num_micro_batches=count)
    compiled = jax.jit(lambda batch: step(step.init(), batch))
    return jax.device_get(compiled(batch()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_experts_arrive_and_parts_of_a_batch_equal_the_whole(kind):
    dispatch = KINDS[kind]
    whole, metrics = after_one_step(model(dispatch))
    assert {"cross_entropy", f"{LAYER}.load_balance", f"{LAYER}.z"} == set(metrics.losses)
    balance = metrics.losses[f"{LAYER}.load_balance"]
    assert balance.sum.shape == (2,)  # a layer each
    np.testing.assert_array_equal(balance.weight, [16, 16])  # tokens that are not padding
    assert (balance.sum / balance.weight > 0.99).all()
    assert metrics.summaries[f"{LAYER}.load"].shape == (2, 4)
    _assert_same(whole, metrics, *after_one_step(model(dispatch, remat=Remat()), count=4))


def _assert_same(state, metrics, other_state, other_metrics):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        metrics.losses,
        other_metrics.losses,
    )
    means = [jax.tree.leaves(optax.tree.get(s.opt_state, "mu")) for s in (state, other_state)]
    for mean, other in zip(*means, strict=True):
        scale = np.abs(mean).max()
        np.testing.assert_allclose(mean / scale, other / scale, rtol=1e-4, atol=1e-5)
