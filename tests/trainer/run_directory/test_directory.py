"""A run directory belongs to one config and one live process; foreign files stay as they are."""

import json
import signal
import subprocess
import sys

import pytest

from axcore.errors import CheckpointError
from axcore.trainer.run_directory.directory import RunDirectory

TEXT = "learner.rate: 0.001\nmax_steps: 100\nmodel.dim: 128\n"


def lock(path, text=TEXT, **options):
    return RunDirectory(path, config_text=text, config_json=json.dumps({"t": text}), **options)


def contents(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_the_first_start_writes_the_config_and_a_later_one_finds_it(tmp_path):
    path = tmp_path / "runs" / "tiny"
    with lock(path) as run:
        assert run.is_new
        assert run.path == path
    assert (path / "config.txt").read_text() == TEXT
    assert json.loads((path / "config.json").read_text()) == {"t": TEXT}
    before = contents(path)
    with lock(path) as run:
        assert not run.is_new
    assert contents(path) == before


def test_another_config_is_refused_with_the_difference(tmp_path):
    lock(tmp_path / "run").close()
    before = contents(tmp_path)
    changed = TEXT.replace("128", "256").replace("max_steps: 100\n", "")
    with pytest.raises(CheckpointError) as raised:
        lock(tmp_path / "run", changed)
    assert str(raised.value).splitlines() == [
        "the directory is the run of another config (-: that run's, +: this one's)",
        "- max_steps: 100",
        "- model.dim: 128",
        "+ model.dim: 256",
        f"  where:  {tmp_path / 'run' / 'config.txt'}",
        "  hint:   use another --dir for this config, or undo the changes to resume that run; "
        "only these may change: none",
    ]
    assert contents(tmp_path) == before
    lock(tmp_path / "run").close()


def test_a_long_difference_is_cut(tmp_path):
    lock(tmp_path, "\n".join(f"layer[{i}].dim: 1" for i in range(40))).close()
    with pytest.raises(CheckpointError, match=r"\.\.\. and 68 more lines"):
        lock(tmp_path, "\n".join(f"layer[{i}].dim: 2" for i in range(40)))


def test_allowed_changes_are_taken_over(tmp_path):
    lock(tmp_path).close()
    longer = TEXT.replace("max_steps: 100", "max_steps: 900")
    with lock(tmp_path, longer, resumable=("max_steps",)) as run:
        assert not run.is_new
    assert (tmp_path / "config.txt").read_text() == longer
    assert json.loads((tmp_path / "config.json").read_text()) == {"t": longer}
    with pytest.raises(CheckpointError, match=r"- model\.dim: 128"):
        lock(tmp_path, longer.replace("128", "64"), resumable=("max_steps",))


def test_what_is_below_a_path_that_may_change_may_change_and_what_only_begins_alike_may_not(
    tmp_path,
):
    text = "save.steps: 1\nsaved: 1\nrules[0].mesh: 1\n"
    lock(tmp_path, text).close()
    paths = ("save", "rules")
    with lock(tmp_path, "save: Other\nsaved: 1\n", resumable=paths) as run:
        assert not run.is_new
    with pytest.raises(CheckpointError, match=r"- saved: 1") as error:
        lock(tmp_path, "saved: 2\n", resumable=paths)
    assert error.value.hint.endswith("only these may change: save, rules")


def test_a_foreign_directory_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("do not touch")
    (tmp_path / "config.json").write_text("{}")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"2 files that are not of a run: config\.json, t"):
        lock(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(CheckpointError, match=r"run directory cannot be used: .*Not a directory"):
        lock(tmp_path / "run")


def test_a_run_that_lost_its_config_is_refused(tmp_path):
    lock(tmp_path).close()
    (tmp_path / "config.txt").unlink()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"has no config\.txt .* contains metrics\.jsonl"):
        lock(tmp_path)


def test_a_first_start_cut_short_is_finished_by_the_next(tmp_path):
    (tmp_path / "axcore.lock").write_text("pid 1 on nowhere\n")
    (tmp_path / "config.json").write_text("half of an old one")
    (tmp_path / "config.txt.tmp").write_text("hal")
    with lock(tmp_path) as run:
        assert run.is_new
    assert json.loads((tmp_path / "config.json").read_text()) == {"t": TEXT}


@pytest.mark.slow
def test_one_live_process_at_a_time_and_a_killed_one_does_not_block(tmp_path):
    code = (
        "import sys, time; from axcore.trainer.run_directory.directory import RunDirectory\n"
        "run = RunDirectory(sys.argv[1], config_text=sys.argv[2], config_json='{}')\n"
        "print('locked', flush=True); time.sleep(60)"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), TEXT], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout.readline() == "locked\n"
        with pytest.raises(CheckpointError, match=rf"another live process \(pid {worker.pid} on"):
            lock(tmp_path)
        assert (tmp_path / "config.json").read_text() == "{}\n"
    finally:
        worker.kill()
        worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    with lock(tmp_path) as run:
        assert not run.is_new
        with pytest.raises(CheckpointError, match=r"this process .* is already training here"):
            lock(tmp_path)
