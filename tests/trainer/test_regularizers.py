"""What is minimised besides the loss is in no `loss`, of validation or of training."""

import jax
import pytest

from axcore.config import replace_config, update_config
from axcore.layers import FeedForward, MoE, Router
from axcore.testing import small_experiment, trainer_on
from axcore.trainer.callbacks.metrics import LossMeter

ROUTER = Router.Config(balance_loss=0.5, z_loss=0.1)
PLAIN = Router.Config(balance_loss=0.0)
Z, BALANCE = "loss/head.z", "loss/decoder.stack.layer.feed_forward.router.load_balance"


def with_regularizers(cfg, router, z_loss):
    moe = lambda ffn: MoE.Config(expert=ffn, num_experts=2, top_k=1, router=router)  # noqa: E731
    small = update_config(cfg, {"model.head.z_loss": z_loss, "**.num_layers": 1, "model.dim": 8})
    return replace_config(small, FeedForward, moe)


def validated(cfg):
    trainer = trainer_on(cfg, 1)
    with jax.set_mesh(trainer.mesh):
        state = trainer.first_state()
    return trainer.evaluate(trainer.step.evaluated_model(state))


@pytest.mark.slow
def test_the_validation_loss_is_the_cross_entropy_alone(tmp_path):
    cfg = small_experiment(tmp_path)
    plain = validated(with_regularizers(cfg, PLAIN, 0.0))
    found = validated(with_regularizers(cfg, ROUTER, 0.1))
    assert set(plain) == {"loss"}
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert found["loss/cross_entropy"] == found["loss"]
    assert found[Z] > 0.1
    assert found[BALANCE] >= 0.49
    parts = [value for name, value in found.items() if name.startswith("loss/")]
    assert found["total_loss"] == pytest.approx(sum(parts))


def test_a_meter_keeps_what_is_minimised_apart():
    from axcore.module import Loss

    meter = LossMeter()
    meter.add({"ce": Loss(6.0, 2.0), "z": Loss(8.0, 2.0, 0.5, is_regularizer=True)})
    assert meter.metrics() == {"loss": 3.0, "total_loss": 5.0, "loss/ce": 3.0, "loss/z": 2.0}
