"""Several processes train as one does on as many devices, and stop together."""

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from object_server import environment, object_server
from several_processes import finish, start_all

from axcore.trainer.shardings import ALL_ROWS, BatchShard, shard_from_rows

WORKER = Path(__file__).with_name("processes_worker.py")
STEPS = 4


@pytest.fixture(scope="module")
def train(text_folder):
    """Starts processes that train in a directory."""

    def start(directory, *, count, devices, own=None, only=None, mesh=None, **task):
        changes = {
            "max_steps": STEPS,
            "mesh": mesh or {"data": 2, "fsdp": 2},
            "eval_every_steps": STEPS,
            "checkpoint.every_steps": 2,
        }
        told = {"text": str(text_folder), "dir": str(directory), "set": changes, "own": own or {}}
        return start_all(
            WORKER,
            json.dumps({**told, **task}),
            count=count,
            devices=devices,
            only=only,
        )

    return start


def told(processes):
    """Returns what each process printed at its end."""
    ended = [finish(process) for process in processes]
    assert [one.exit_code for one in ended] == [0] * len(ended), ended
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]


def losses(directory):
    lines = map(json.loads, (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {(line["step"], line["split"]): line["loss"] for line in lines}


def assert_same(found, wanted):
    assert list(found) == list(wanted)
    np.testing.assert_allclose(list(found.values()), list(wanted.values()), rtol=1e-5)


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """The losses of one process on four devices."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    (one,) = told(train(directory, count=1, devices=4))
    assert (one["step"], one["share"], one["devices"]) == (STEPS, [0, 1], 4)
    return losses(directory)


@pytest.fixture(scope="module")
def stopped(train, tmp_path_factory):
    """The run of two processes of which the second was asked to stop at step 2."""
    directory = tmp_path_factory.mktemp("two") / "run"
    return directory, told(train(directory, count=2, devices=2, stop_at=2, stop_in=1))


@pytest.mark.slow
def test_two_processes_stop_together_where_one_is_asked_to(stopped):
    directory, both = stopped
    assert [one["step"] for one in both] == [2, 2]
    assert [one["share"] for one in both] == [[0, 2], [1, 2]]
    assert sorted(path.name for path in (directory / "checkpoints").glob("step*")) == [
        "step_00000002"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("signal", marks=pytest.mark.long), "notice"])
def test_processes_stop_together_long_before_they_log(train, tmp_path, kind):
    rare = {"max_steps": 10**6, "logging.every_steps": 10**5, "checkpoint.every_steps": 10**5}
    notice = str(tmp_path / "notice")
    own = {str(index): {**rare, "preemption_notice": notice} for index in range(2)}
    asked = {"ask_at": 30, "ask_in": "1", **({"notice": notice} if kind == "notice" else {})}
    both = told(train(tmp_path / "run", count=2, devices=1, own=own, mesh={"data": 2}, **asked))
    step = both[0]["step"]
    assert (both[1]["step"], step >= 29) == (step, True)
    (seconds,) = both[1]["stopped_after_s"]
    assert seconds < 300, "the next log line is an hour away"
    assert (tmp_path / f"run/checkpoints/step_{step:08d}").is_dir()


@pytest.mark.slow
def test_two_processes_train_as_one_and_one_goes_on_from_their_checkpoint(train, stopped, whole):
    directory, _ = stopped
    (one,) = told(train(directory, count=1, devices=4))
    assert one["step"] == STEPS
    assert_same(losses(directory), whole)


def in_order(events):
    """Returns the events but for those of saving, which end whenever a process is done with it."""
    return [event for event in events if event != "CheckpointSaved"]


@pytest.mark.slow
def test_a_model_split_over_two_processes_trains_the_same(train, whole, tmp_path):
    (tmp_path / "run").mkdir()
    both = told(train(tmp_path / "run", count=2, devices=2, mesh={"model": 4}))
    assert [one["share"] for one in both] == [[0, 1], [0, 1]]
    assert both[0]["validation"] == both[1]["validation"]
    assert in_order(both[0]["events"]) == in_order(both[1]["events"])
    assert Counter(both[0]["events"]) == Counter(both[1]["events"])
    assert_same(losses(tmp_path / "run"), whole)
    starts = (tmp_path / "run/run_history.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(starts) == 1


@pytest.mark.slow
def test_four_processes_go_on_from_the_checkpoint_of_one(train, whole, tmp_path):
    told(train(tmp_path / "run", count=1, devices=4, stop_at=2, stop_in=0))
    four = told(train(tmp_path / "run", count=4, devices=1))
    assert [one["share"] for one in four] == [[index, 4] for index in range(4)]
    assert_same(losses(tmp_path / "run"), whole)


@pytest.mark.slow
def test_a_run_of_which_one_process_is_killed_goes_on_from_its_checkpoint(train, whole, tmp_path):
    first, second = train(tmp_path / "run", count=2, devices=2, kill_at=3, kill_in=1)
    assert finish(second).exit_code == -signal.SIGKILL
    assert finish(first).exit_code != 0
    assert told(train(tmp_path / "run", count=2, devices=2))[0]["step"] == STEPS
    assert_same(losses(tmp_path / "run"), whole)


@pytest.mark.slow
def test_a_process_whose_first_step_waits_for_another_one_ends_at_sigterm(train, tmp_path):
    first, second = train(tmp_path / "run", count=2, devices=2, freeze_in=1)
    try:
        assert first.stdout.readline() == second.stdout.readline() == "in its first step\n"
        first.send_signal(signal.SIGTERM)
        ended = finish(first, timeout_s=60)
        assert (ended.exit_code, "SIGTERM ends the run while it waits" in ended.stderr) == (
            143,
            True,
        )
    finally:
        second.kill()
        finish(second)


def refused(processes, name):
    ended = [finish(process) for process in processes]
    assert all(one.exit_code != 0 for one in ended)
    texts = [one.stdout for one in ended if name in one.stdout]
    assert texts, ended
    return texts[0]


@pytest.mark.slow
def test_processes_of_different_configs_are_refused(train, tmp_path):
    own = {"1": {"seed": 7}}
    text = refused(train(tmp_path / "run", count=2, devices=2, own=own), "PluginError")
    assert "process 1 has 'config seed: 7'" in text
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_processes_of_different_data_are_refused(train, text_folder, tmp_path):
    for index in (0, 1):
        shutil.copytree(text_folder, tmp_path / str(index) / "text")
    (tmp_path / "1/text/39.txt").write_text("something else", encoding="utf-8")
    two = train(tmp_path / "run", count=2, devices=2, text="text", cwd=str(tmp_path / "{index}"))
    assert "process 1 lacks 'data tokens: " in refused(two, "PluginError")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_many_steps_between_logs_end_with_two_devices_a_process(train, tmp_path):
    never = {"logging.every_steps": 1000, "eval_every_steps": 1000, "checkpoint.every_steps": 1000}
    own = {str(index): {**never, "max_steps": 20} for index in range(2)}
    both = told(train(tmp_path / "run", count=2, devices=2, own=own))
    assert [one["step"] for one in both] == [20, 20]


@pytest.mark.slow
def test_a_directory_that_is_not_shared_is_refused(train, tmp_path):
    processes = train(tmp_path / "run of {index}", count=2, devices=2)
    text = refused(processes, "CheckpointError")
    assert "process 1 on " in text
    assert "cannot see the config.txt that process 0 wrote" in text
    assert "use a --dir on a file system that all processes share" in text


@pytest.mark.slow
def test_with_an_object_store_nothing_is_shared(train, whole, tmp_path, monkeypatch):
    for index in range(4):
        (tmp_path / str(index)).mkdir()
    with object_server() as (port, bucket):
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)
        place = {"checkpoint.directory": f"s3://{bucket}/run?staging=staging"}
        hosts = {"cwd": str(tmp_path / "{index}"), "own": dict.fromkeys("0123", place)}
        told(train("run", count=2, devices=2, stop_at=2, stop_in=1, **hosts))
        four = told(train("run", count=4, devices=1, **hosts))
    assert [one["step"] for one in four] == [STEPS] * 4
    assert_same(losses(tmp_path / "0/run"), whole)
    for index in range(4):
        assert (tmp_path / f"{index}/run/config.txt").exists() == (index == 0)
        assert list((tmp_path / f"{index}/staging").iterdir()) == []


@pytest.mark.parametrize(
    ("held", "shard"),
    [
        ([slice(0, 4), slice(4, 8)], BatchShard(0, 2)),
        ([slice(8, 12), slice(12, 16)], BatchShard(1, 2)),
        ([slice(4, 8), slice(4, 8)], BatchShard(1, 4)),
        ([slice(None)], ALL_ROWS),
        ([slice(0, 4), slice(8, 12)], ALL_ROWS),  # two blocks with a gap
        ([slice(4, 12)], ALL_ROWS),  # a block, but not one of equal ones
    ],
)
def test_a_process_reads_the_block_of_rows_that_its_devices_hold(held, shard):
    assert shard_from_rows(held, 16) == shard
