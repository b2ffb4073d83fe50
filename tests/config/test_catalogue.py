"""Every experiment that is installed obeys the laws of configs."""

import pickle
from typing import Any

import pytest

from axcore.config import (
    Configurable,
    digest,
    from_json,
    from_yaml,
    render_config,
    replace_config,
    to_json,
    to_yaml,
)
from axcore.plugins import Experiment, plugin_host

EXPERIMENTS = {record.name: record for record in plugin_host().records(Experiment)}


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.quick_one_in(4)
def test_round_trip_of_an_experiment_is_exact(name: str) -> None:
    cfg: Any = EXPERIMENTS[name].fn.resolve()()
    assert cfg == EXPERIMENTS[name].fn.resolve()(), "an experiment is the same each time"
    trips = (
        from_json(to_json(cfg)),
        from_yaml(to_yaml(cfg)),
        pickle.loads(pickle.dumps(cfg)),
    )
    for again in trips:
        assert again == cfg
        assert hash(again) == hash(cfg)
        assert render_config(again, fold_defaults=False) == render_config(cfg, fold_defaults=False)
        assert digest(again) == digest(cfg)
    assert replace_config(cfg, Configurable, lambda node: node) is cfg
