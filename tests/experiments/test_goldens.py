"""Every experiment of the core is pinned down as text.

After a change that is meant: axcore config golden NAME tests/experiments/goldens/NAME.txt --write
"""

from pathlib import Path

import pytest

from axcore.config import from_json, render_config, to_json
from axcore.plugins import Experiment, plugin_host

GOLDENS = Path(__file__).with_name("goldens")
EXPERIMENTS = {
    record.name: record for record in plugin_host().records(Experiment) if record.plugin == "core"
}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_an_experiment_renders_as_its_golden_text(name):
    golden = (GOLDENS / f"{name}.txt").read_text(encoding="utf-8")
    assert render_config(EXPERIMENTS[name].fn.resolve()()) == golden


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_an_experiment_survives_being_saved_and_loaded(name):
    cfg = EXPERIMENTS[name].fn.resolve()()
    assert from_json(to_json(cfg)) == cfg


def test_no_golden_text_is_left_of_an_experiment_that_is_gone():
    assert {path.stem for path in GOLDENS.iterdir()} == set(EXPERIMENTS)
