"""`axcore serve`, `axcore evaluate` and sampling in training, each as two processes of one run."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from quick_flags import quick_environment
from several_processes import finish, free_address

from axcore.config import evolve, to_json, update_config
from axcore.evaluation import EvaluateTasks
from axcore.runs.text_samples import TextSamples
from axcore.testing.tiny import small_experiment

pytestmark = pytest.mark.slow

SIZES = ("max_num_seqs=2", "max_length=32", "max_num_batched_tokens=20", "num_decode_steps=1")
FEW = [word for one in SIZES for word in ("--set", f"engine.{one}")]
"""Few shapes, so that little is compiled."""


def start(*words, count=2, devices=1):
    """Starts a command once for each process."""
    address, flags = free_address(), []
    if count > 1:
        flags = [
            ["--coordinator", address, "--num-processes", count, "--process-id", index]
            for index in range(count)
        ]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "axcore", *map(str, (*words, *own))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **quick_environment(devices=devices)},
        )
        for own in (flags or [[]])
    ]


@contextlib.contextmanager
def started(*words):
    """Yields two processes of a command, which are killed in the end."""
    with contextlib.ExitStack() as open_processes:
        found = [open_processes.enter_context(one) for one in start(*words)]
        try:
            yield found
        finally:
            for one in found:
                one.kill()


def run(*words, **options):
    ended = [finish(one) for one in start(*words, **options)]
    assert all(one.exit_code == 0 for one in ended), ended
    return ended


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config whose run is asked tasks and samples text while it trains."""
    folder = tmp_path_factory.mktemp("several")
    cfg = update_config(
        small_experiment(folder / "text"),
        {"max_steps": 2, "eval_every_steps": 2, "mesh": {"fsdp": -1}},
    )
    tasks = EvaluateTasks.Config(tasks=("arithmetic",), every_steps=2, limit=3, rows=2)
    path = folder / "several.json"
    cfg = evolve(cfg, guards=(tasks, TextSamples.Config(max_tokens=6)))
    path.write_text(to_json(cfg), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(config):
    """The run of one process with two devices."""
    run("train", config, "--dir", config.parent / "one", count=1, devices=2)
    return config.parent / "one"


def lines(path):
    return [json.loads(one) for one in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_samples_and_is_asked_tasks_as_in_one_process(config, trained):
    run("train", config, "--dir", config.parent / "two")
    for name in ("samples.jsonl", "evaluation/2/arithmetic.samples.jsonl"):
        assert lines(config.parent / "two" / name) == lines(trained / name)
    metrics = [
        [one for one in lines(folder / "metrics.jsonl") if one["split"] == "evaluation"]
        for folder in (trained, config.parent / "two")
    ]
    assert metrics[0] == metrics[1]
    assert len(metrics[0]) == 1


def test_tasks_are_evaluated_as_in_one_process(trained, tmp_path):
    asked = ("evaluate", trained, "--tasks", "arithmetic", "--limit", 3, "--rows", 2)
    run(*asked, "--output", tmp_path / "one", count=1)
    two = run(*asked, "--output", tmp_path / "two")
    assert lines(tmp_path / "two/arithmetic.samples.jsonl") == lines(
        tmp_path / "one/arithmetic.samples.jsonl"
    )
    assert f"kept in {tmp_path / 'two'}" in two[0].stdout
    assert "kept in" not in two[1].stdout


def test_a_server_of_two_processes_answers_and_ends_with_both(trained):
    with started("serve", trained, "--port", 0, *FEW) as (first, second):
        url = None
        while url is None:
            line = first.stdout.readline()
            assert line, first.stderr.read()
            url = re.search(r"http://[\d.:]+/", line)
        body = {"prompt": "def ", "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(
            f"{url[0]}v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 8
        for one in (second, first):  # as an engine signals all, in any order
            one.terminate()
            time.sleep(0.5)
        ended = [finish(one, 60) for one in (first, second)]
    assert [one.exit_code for one in ended] == [0, 0], ended
    assert "weights are split over 2 of 2 devices of 2 processes" in ended[0].stderr
    assert "newer checkpoints need a new start" in ended[0].stderr


def test_a_server_whose_other_process_is_lost_says_so_and_ends(trained):
    with started("serve", trained, "--port", 0, *FEW) as (first, second):
        while "http://" not in (line := first.stdout.readline()):
            assert line, first.stderr.read()
        second.kill()
        ended = finish(first, 120)
    assert ended.exit_code != 0
    assert "process 1 was lost" in ended.stderr
