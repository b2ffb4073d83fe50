"""Metrics are shown with the units of their task, and a perplexity only of nats a token."""

import pytest

from axcore.models import llama2
from axcore.tasks import DPO, IPO, KTO, ORPO, SimPO
from axcore.trainer.callbacks.metrics import described, validation_line

PAIRS = {"loss": 0.69, "reward_margin": 0.5, "reward_accuracy": 0.75}


@pytest.mark.parametrize("task", [DPO, IPO, SimPO])
def test_objectives_on_pairs_have_no_perplexity(task):
    units = task.Config().build(model=llama2("toy")).metric_units()
    shown = ["loss 0.6900 a pair", "reward_margin 0.5000", "reward_accuracy 0.7500 of pairs"]
    assert described(PAIRS, units) == shown
    assert validation_line(PAIRS, units) == "validation " + "  ".join(shown)


def test_kto_is_a_loss_of_answers():
    units = KTO.Config().build(model=llama2("toy")).metric_units()
    assert described({"loss": 0.5, "reward_good": 0.1}, units) == [
        "loss 0.5000 an answer",
        "reward_good 0.1000",
    ]


def test_orpo_has_the_perplexity_of_its_cross_entropy_alone():
    units = ORPO.Config().build(model=llama2("toy")).metric_units()
    metrics = {**PAIRS, "loss": 2.1, "loss/cross_entropy": 2.0, "loss/preference": 0.1}
    assert described(metrics, units)[:2] == [
        "loss 2.1000 a pair",
        "loss/cross_entropy 2.0000 nats a token, perplexity 7.389",
    ]


def test_a_language_model_has_a_perplexity_and_a_total_with_other_losses_has_none():
    units = llama2("toy").build().metric_units()
    assert described({"loss": 2.0}, units) == ["loss 2.0000 nats a token, perplexity 7.389"]
    balanced = {"loss": 2.5, "loss/cross_entropy": 2.0, "loss/router.z": 0.5}
    assert validation_line(balanced, units) == "validation loss 2.5000 nats a token"
    assert described(balanced, units)[1].endswith("perplexity 7.389")


def test_metrics_of_a_module_that_says_nothing_have_no_unit():
    assert described({"accuracy": 0.91, "loss": 0.3}, {}) == ["loss 0.3000", "accuracy 0.9100"]
