"""How `axcore serve` ends: with 0 at any signal, at any time, and without waiting for what it does.

Each test changes one thing of the process that serves, to meet a moment that is short.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from quick_flags import quick_environment

from axcore.testing.tiny import small_experiment

FEW = ("max_num_seqs=2", "max_length=32", "max_num_batched_tokens=20", "num_decode_steps=1")
SERVE = """
import os, signal, sys, time
from axcore.cli.main import main
{change}
main(["serve", *sys.argv[1:]])
"""
SIGNAL_BEFORE_THE_SERVER_HAS_IT = """
from axcore.serving import HttpServer
run = HttpServer.run
def with_signal(self, **values):
    os.kill(os.getpid(), signal.SIGTERM)
    run(self, **values)
HttpServer.run = with_signal
"""
RESTORE_THAT_TAKES_LONG = """
from axcore.runs import Run
from axcore.serving import WeightsWatch
def restored(self, step, **how):
    print("restoring", flush=True)
    time.sleep(300)
def newest(self):
    Run.restored = restored  # the first weights were restored before
    return 99
WeightsWatch._newest = newest
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    small_experiment(folder / "text").build().run(folder / "run")
    return folder / "run"


def served(run, change, *sets):
    """Returns a process that serves a run, with something changed."""
    words = [word for one in FEW for word in ("--set", f"engine.{one}")]
    words += [word for one in sets for word in ("--set", one)]
    command = [sys.executable, "-c", SERVE.format(change=change), str(run), "--port", "0", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**os.environ, **quick_environment()}, **pipes)


def read_until(process, text):
    """Returns what a process printed up to a line with some text."""
    said = ""
    for line in process.stdout:
        said += line
        if re.search(text, line):
            return said
    pytest.fail(f"never said {text!r}: {said}")


@pytest.mark.slow
def test_a_signal_before_the_server_takes_signals_ends_it_with_0(run):
    with served(run, SIGNAL_BEFORE_THE_SERVER_HAS_IT) as process:
        said = process.stdout.read()
    assert process.returncode == 0, said
    assert "ended" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drain_s", "signals"),
    [
        ("60", (signal.SIGTERM, signal.SIGTERM)),
        ("60", (signal.SIGTERM, signal.SIGINT)),
        ("1", (15,)),
    ],
    ids=["second-signal", "second-is-ctrl-c", "end-of-drain_s"],
)
def test_no_end_waits_for_a_restore(run, drain_s, signals):
    sets = ("watch_s=0.05", f"drain_s={drain_s}")
    with served(run, RESTORE_THAT_TAKES_LONG, *sets) as process:
        said = read_until(process, "restoring")
        began = time.monotonic()
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        said += process.stdout.read()
    assert process.returncode == 0, said
    assert time.monotonic() - began < 30
    assert "ended" in said


@pytest.mark.slow
def test_who_may_ask_is_said_where_everybody_may(run):
    """Its names are not checked then either, as nobody knows what others call the machine."""
    with served(run, "sys.argv += ['--host', '0.0.0.0']") as process:
        said = read_until(process, "may ask|^curl .*")
        said += read_until(process, "may ask") if "may ask" not in said else ""
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert (
        "without keys, everybody who reaches 0.0.0.0 may ask, and so can pages of any site" in said
    )
    assert process.returncode == 0
