"""Every experiment of the plugin is pinned down as text, by itself and on some hardware.

After a change that is meant, `python tests/test_goldens.py` writes all of them again.
"""

from pathlib import Path

import pytest

from axcore.config import check_golden
from axcore.plugins import Experiment, Hardware, plugin_host
from axcore.trainer import resolve

GOLDENS = Path(__file__).with_name("goldens")
EXPERIMENTS = {
    record.name: record.fn
    for record in plugin_host().records(Experiment)
    if record.plugin == "axl-audio"
}
TARGETS = ("tpu-v5e-8", "gpu-h100-8")
"""Laid out by the experiments' own rules, so by names: no plugin for the hardware is needed."""


def golden(name, target=None):
    return GOLDENS / (target or "") / f"{name}.txt"


def on(name, target):
    cfg = EXPERIMENTS[name].resolve()()
    return resolve(cfg, Hardware.parse(target)).config if target else cfg


@pytest.mark.parametrize("target", [None, *TARGETS])
@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_an_experiment_renders_as_its_golden_text(name, target):
    check_golden(on(name, target), golden(name, target))


def test_no_golden_text_is_left_of_an_experiment_that_is_gone():
    wanted = {golden(name, target) for name in EXPERIMENTS for target in (None, *TARGETS)}
    assert set(GOLDENS.rglob("*.txt")) == wanted


if __name__ == "__main__":
    for name in EXPERIMENTS:
        for target in (None, *TARGETS):
            check_golden(on(name, target), golden(name, target), update=True)
