"""A short run that an engine below is given, with faults in it, and how far it has come."""

import json
import time

from axcore.config import evolve, to_json, update_config
from axcore.resilience.faults import FaultPlan
from axcore.testing.tiny import small_experiment

STEPS = 30
_LIMIT_S = 300


def write_experiment(folder, *faults, guards=()):
    """Returns the file of a config that faults strike; each fifth step is saved before the next."""
    cfg = small_experiment(folder / "text")
    changes = {"max_steps": STEPS, "logging.every_steps": 1, "eval_every_steps": STEPS}
    cfg = evolve(
        update_config(cfg, changes),
        checkpoint=evolve(cfg.checkpoint, every_steps=5, saves_in_background=False),
        guards=(FaultPlan.Config(faults=faults), *guards),
    )
    path = folder / "small.json"
    path.write_text(to_json(cfg), encoding="utf-8")
    return path


def steps(run):
    """Returns the steps that a run directory has metrics of."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def wait_for(is_there, what, shown=lambda: ""):
    """Waits until something is true; a failure shows what was seen."""
    end = time.monotonic() + _LIMIT_S
    while not is_there():
        assert time.monotonic() < end, f"{what} did not come\n{shown()}"
        time.sleep(0.1)


def assert_whole(run):
    """Fails unless a run made every step and saved the last one."""
    assert sorted(set(steps(run))) == list(range(1, STEPS + 1))
    assert (run / f"checkpoints/step_{STEPS:08}/manifest.json").exists()
