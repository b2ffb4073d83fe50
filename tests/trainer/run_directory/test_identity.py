"""Checkpoints belong to one run, losing them is not a fresh start, and processes of a run agree."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from quick_flags import xla_flags
from several_processes import free_address

from axcore.checkpoint import MemorySnapshots
from axcore.config import evolve
from axcore.errors import CheckpointError, PluginError
from axcore.ops import KernelPlan
from axcore.plugins.host import first_difference, require_consistency
from axcore.resilience.faults import FaultPlan, InjectedFaultError, Raise
from axcore.testing import make_dist
from axcore.trainer import RunStarted, StepsDone
from axcore.trainer.run_directory.code import loaded_sources
from axcore.trainer.run_directory.identity import (
    RunIdentity,
    check_processes_agree,
    fingerprint_of_process,
    write_identity,
)
from axcore.trainer.run_directory.saved_steps import check_saved_steps, record_saved_step

IDENTITY = RunIdentity("a1", "c1", "d1")


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer


def test_a_run_keeps_its_identity_and_two_runs_differ(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    made = {"config_lines": ["seed: 0"], "data": "d1"}
    first = write_identity(tmp_path / "a", **made)
    assert write_identity(tmp_path / "a", **made) == first
    other = write_identity(tmp_path / "b", **made)
    assert (other.id != first.id, other.config) == (True, first.config)


def test_a_damaged_identity_is_named(tmp_path):
    (tmp_path / "run.json").write_text('{"id": ')
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        write_identity(tmp_path, config_lines=[], data="d1")


def test_a_checkpoint_of_another_run_is_refused_with_both_sides(tmp_path):
    IDENTITY.check(IDENTITY.as_json(), step=8, directory=tmp_path)
    IDENTITY.check(None, step=8, directory=tmp_path)  # of an axcore that did not say
    with pytest.raises(CheckpointError) as error:
        IDENTITY.check({"id": "b2", "config": "c1", "data": "d1"}, step=8, directory=tmp_path)
    assert "step 8 is another run's (-: that run's, +: this one's)\n- id: b2\n+ id: a1" in str(
        error.value
    )


def test_lost_checkpoints_are_an_error_that_says_where_they_were(tmp_path):
    check_saved_steps(tmp_path, (), tmp_path / "checkpoints")  # a new run has none
    record_saved_step(tmp_path, 8, tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as error:
        check_saved_steps(tmp_path, (), tmp_path / "checkpoints")
    assert f"step 8 (it was saved in {tmp_path / 'elsewhere'})" in error.value.what
    assert "--from-step 0" in error.value.hint
    with pytest.warns(UserWarning, match="step 8 was saved and is not in .*resuming from step 4"):
        check_saved_steps(tmp_path, (4,), tmp_path / "elsewhere")
    assert check_saved_steps(tmp_path, (4, 8), tmp_path / "elsewhere")


def test_a_snapshot_takes_the_place_of_lost_checkpoints_and_a_warning_names_them(tmp_path):
    record_saved_step(tmp_path, 8, tmp_path)
    with pytest.warns(UserWarning, match="step 8 was saved and is not in .*from the snapshot"):
        assert not check_saved_steps(tmp_path, (), tmp_path, snapshot="the snapshot of step 9")


def test_starts_that_resumed_show_that_there_were_checkpoints(tmp_path):
    (tmp_path / "run_history.jsonl").write_text('{"step": 0}\n{"step": 60}\n')
    with pytest.raises(CheckpointError, match="saved a checkpoint of step 60, and there is none"):
        check_saved_steps(tmp_path, (), tmp_path / "checkpoints")


@pytest.mark.slow
def test_a_run_whose_checkpoints_were_moved_starts_again_only_on_purpose(toy_trainer, tmp_path):
    run = tmp_path / "run"
    toy_trainer.run(run, [stop_at(5)], returns_when_stopped=True)
    before = (run / "metrics.jsonl").read_bytes()
    shutil.move(run / "checkpoints", tmp_path / "moved")
    with pytest.raises(CheckpointError, match="step 5, and there is none"):
        toy_trainer.run(run)
    assert (run / "metrics.jsonl").read_bytes() == before
    started = []
    toy_trainer.run(run, [started.append, stop_at(1)], from_step=0, returns_when_stopped=True)
    assert next(event.step for event in started if isinstance(event, RunStarted)) == 0


@pytest.mark.slow
def test_a_snapshot_does_not_hide_that_checkpoints_are_lost(toy_config, one_device, tmp_path):
    run = tmp_path / "run"
    trainer = one_device(
        evolve(
            toy_config,
            checkpoint=evolve(toy_config.checkpoint, saves_in_background=False),
            snapshots=MemorySnapshots.Config(every_steps=2, directory=str(tmp_path / "memory")),
            guards=(FaultPlan.Config(faults=(Raise(at_step=8),)),),
        )
    )
    with pytest.raises(InjectedFaultError):
        trainer.run(run)
    shutil.move(run / "checkpoints", tmp_path / "moved")
    recorded = []

    def stop_at_once(event):
        if isinstance(event, RunStarted):
            recorded.append(json.loads((run / "saved_steps.json").read_text())["newest"])
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="step 4 was saved and is not in .*from the snapshot of"):
        trainer.run(run, [stop_at_once], returns_when_stopped=True)
    assert recorded == [4]


@pytest.mark.slow
def test_two_runs_cannot_share_their_checkpoints(toy_config, one_device, tmp_path):
    shared = evolve(toy_config.checkpoint, directory=str(tmp_path / "shared"))
    one_device(evolve(toy_config, checkpoint=shared)).run(
        tmp_path / "a", [stop_at(5)], returns_when_stopped=True
    )
    other = one_device(evolve(toy_config, checkpoint=shared, seed=7))
    with pytest.raises(CheckpointError, match="another run's") as error:
        other.run(tmp_path / "b")
    own = json.loads((tmp_path / "b/run.json").read_text())
    assert f"+ id: {own['id']}" in error.value.what
    assert "+ config: " in error.value.what


PROCESS = """
import sys
import jax
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from axcore.errors import PluginError
from axcore.ops import KernelPlan
from axcore.trainer.run_directory.identity import check_processes_agree
try:
    check_processes_agree(KernelPlan(()))
    print("agreed")
except PluginError as error:
    print(error)
"""


def run_two(environments: list[dict[str, str]]) -> list[str]:
    """Runs two processes of one run; returns what each prints."""
    address = free_address()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, str(index)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(""), **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, environment in enumerate(environments)
    ]
    return [process.communicate(timeout=300)[0] for process in started]


def with_module(root: Path, rate: float) -> dict[str, str]:
    folder = root / str(rate)
    folder.mkdir()
    (folder / "schedule.py").write_text(f"rate = {rate}\n")
    (folder / "same.py").write_text("import schedule\n")
    (folder / "sitecustomize.py").write_text("import same\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


@pytest.mark.slow
def test_two_processes_with_different_code_both_stop(tmp_path):
    said = run_two([with_module(tmp_path, 0.1), with_module(tmp_path, 0.7)])
    for text in said:
        assert "process 1 has other code in schedule.py\n" in text
        assert "install the same versions and code everywhere" in text


def test_loaded_code_is_told_apart_by_its_content(tmp_path, monkeypatch):
    (tmp_path / "rates_of_a_user.py").write_text("rate = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import rates_of_a_user  # noqa: F401

    before = loaded_sources(["axcore"])
    (tmp_path / "rates_of_a_user.py").write_text("rate = 7\n")
    after = loaded_sources(["axcore"])
    assert [name for name in before if before[name] != after[name]] == ["rates_of_a_user.py"]
    assert "axcore/trainer/run_directory/code.py" in after
    assert not any(name.startswith(("json/", "numpy/")) for name in after)


def with_plugin(root: Path, version: str) -> dict[str, str]:
    make_dist(root / version, "axl-acme", "", version=version)
    return {"PYTHONPATH": str(root / version)}


@pytest.mark.slow
def test_two_processes_with_different_plugin_versions_both_stop(tmp_path):
    said = run_two([with_plugin(tmp_path, "1.0"), with_plugin(tmp_path, "1.1")])
    for text in said:
        assert "the processes of this run differ" in text
        assert (
            "process 1 lacks 'plugin axl-acme axl-acme 1.0', has 'plugin axl-acme axl-acme 1.1'"
            in (text)
        )


@pytest.mark.slow
def test_flags_of_processes_are_compared():
    flags = xla_flags("--xla_cpu_enable_fast_math=false")
    said = run_two([{"XLA_FLAGS": flags}, {"XLA_FLAGS": flags}])
    assert [text.splitlines()[-1] for text in said] == ["agreed", "agreed"]
    said = run_two([{"XLA_FLAGS": flags}, {}])
    assert all(f"process 1 lacks \"XLA_FLAGS='{flags}'\"" in text for text in said)


def test_a_single_process_has_nothing_to_compare():
    check_processes_agree(KernelPlan(()))


def test_lines_name_plugins_versions_and_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--acme")
    lines = fingerprint_of_process(KernelPlan(()))
    assert "XLA_FLAGS='--acme'" in lines
    assert any(line.startswith("package jax ") for line in lines)
    assert any(line.startswith("plugin core axcore ") for line in lines)


def test_differences_name_the_process_and_are_not_endless():
    require_consistency([first_difference(["a", "b"], ["b", "a"]), ""])
    many = [str(number) for number in range(20)]
    same, longer = first_difference(["a"], ["a"]), first_difference(["a"], ["a", *many])
    with pytest.raises(PluginError) as refused:
        require_consistency(["", same, longer])
    assert "process 1" not in refused.value.what
    assert "process 2 has '0'" in refused.value.what
    assert refused.value.what.endswith("and 12 more")
