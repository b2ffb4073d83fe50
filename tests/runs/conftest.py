"""One short run, that tests open."""

from pathlib import Path

import pytest

import axcore as ax
from axcore.testing import small_experiment, trainer_on
from axcore.trainer import TrainResult


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    """Returns the directory of a run of two steps, and what training returned."""
    folder = tmp_path_factory.mktemp("trained")
    cfg = ax.update_config(small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}})
    return folder / "run", trainer_on(cfg, 1).run(folder / "run", quiet=True)
