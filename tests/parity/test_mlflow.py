"""The writer for MLflow, with its library, too large for the suite's environment."""

import json
import math
import os
import subprocess
import sys

import pytest

WRITE = """
import sys
from axcore.trainer.callbacks.boards import mlflow

step = int(sys.argv[2])
writer = mlflow(sys.argv[1], step)
writer.write(step + 1, "train", {"loss": 0.5 + step, "gradient_norm/a.layer[3]": float("nan")})
writer.write(step + 1, "validation", {"loss": 2.0, "loss/cross_entropy": 1.5})
writer.close()
"""

READ = """
import json, sys
from mlflow.tracking import MlflowClient

client = MlflowClient(tracking_uri=sys.argv[1])
(experiment,) = [one for one in client.search_experiments() if one.name == "axcore"]
(run,) = client.search_runs([experiment.experiment_id])
curves = {
    name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
    for name in run.data.metrics
}
print(json.dumps([run.info.run_name, run.info.status, run.data.params, curves]))
"""


@pytest.mark.parity
def test_mlflow_reads_all_points_of_all_starts(tmp_path):
    folder = tmp_path / "first run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"id": "feed"}))
    lines = ["Trainer", "model: LM", *(f"model.rules['a'][{n}]: {n}" for n in range(150))]
    (folder / "config.txt").write_text("\n".join(lines))
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    env = {name: value for name, value in env.items() if name != "MLFLOW_TRACKING_URI"}
    for step in ("0", "2"):
        subprocess.run([sys.executable, "-c", WRITE, str(folder), step], check=True, env=env)
    env["MLFLOW_ALLOW_FILE_STORE"] = "true"
    command = [sys.executable, "-c", READ, (folder / "mlflow").as_uri()]
    read = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
    name, status, params, curves = json.loads(read.stdout)
    assert (name, status) == ("first run", "FINISHED")
    assert params == {"model": "LM", **{f"model.rules.a.{n}": str(n) for n in range(150)}}
    norms = curves.pop("train/gradient_norm.a.layer.3")
    assert [step for step, _ in norms] == [1, 3]
    assert all(math.isnan(value) for _, value in norms)
    assert curves == {
        "train/loss": [[1, 0.5], [3, 2.5]],
        "validation/loss": [[1, 2.0], [3, 2.0]],
        "validation/loss.cross_entropy": [[1, 1.5], [3, 1.5]],
    }
