"""Every experiment of the core is pinned down as text, by itself and on each family of hardware.

After a change that is meant, `python tests/experiments/test_goldens.py` writes all of them again.
"""

from pathlib import Path

import pytest

from axcore.config import check_golden, from_json, to_json
from axcore.experiments.named import load_experiment, load_resolved
from axcore.plugins import Experiment, Hardware, plugin_host

GOLDENS = Path(__file__).with_name("goldens")
EXPERIMENTS = sorted(
    record.name for record in plugin_host().records(Experiment) if record.plugin == "core"
)
TARGETS = ("tpu-v5p-512", "tpu-v5e-256", "gpu-h100-256", "trainium-trn2-64")


def golden(name, target=None):
    return GOLDENS / (target or "") / f"{name}.txt"


def on(name, target):
    return load_resolved(name, hardware=Hardware.parse(target)).config


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_renders_as_its_golden_text(name):
    check_golden(load_experiment(name), golden(name))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_on_some_hardware_renders_as_its_golden_text(name, target):
    check_golden(on(name, target), golden(name, target))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_survives_being_saved_and_loaded(name):
    for cfg in (load_experiment(name), *(on(name, target) for target in TARGETS)):
        assert from_json(to_json(cfg)) == cfg


@pytest.mark.parametrize("record", plugin_host().records(Experiment), ids=lambda one: one.name)
def test_an_experiment_can_be_tried_out_in_few_steps(record):
    schedule = load_experiment(record.name).learner.schedule
    for num_steps in (1, 8):
        assert float(schedule.build(total_steps=num_steps)(0)) > 0 or num_steps == 1


def test_no_golden_text_is_left_of_an_experiment_or_a_target_that_is_gone():
    there = {path.relative_to(GOLDENS) for path in GOLDENS.rglob("*.txt")}
    wanted = {golden(name, target) for name in EXPERIMENTS for target in (None, *TARGETS)}
    assert there == {path.relative_to(GOLDENS) for path in wanted}


if __name__ == "__main__":
    for name in EXPERIMENTS:
        check_golden(load_experiment(name), golden(name), update=True)
        for target in TARGETS:
            check_golden(on(name, target), golden(name, target), update=True)
