"""The writer for Weights & Biases, with its library, too large for the suite's environment."""

import json
import os
import subprocess
import sys

import pytest

WANDB_RUN = """
import sys
from axcore.trainer.callbacks.boards import wandb

step = int(sys.argv[2])
writer = wandb(sys.argv[1], step)
writer.write(step + 1, "train", {"loss": 0.625 + step})
writer.close()
"""


@pytest.mark.parity
def test_weights_and_biases_takes_a_run_up_under_its_id(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"id": "feed"}))
    (tmp_path / "config.json").write_text(json.dumps({"max_steps": 4321}))
    for step in ("0", "2"):
        command = [sys.executable, "-c", WANDB_RUN, str(tmp_path), step]
        subprocess.run(command, check=True, env={**os.environ, "WANDB_MODE": "offline"})
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-feed.wandb"))
    assert len(files) == 2
    for file, value in zip(files, (b"0.625", b"2.625"), strict=True):
        content = file.read_bytes()
        assert b"train/loss" in content
        assert value in content
        assert b"4321" in content
