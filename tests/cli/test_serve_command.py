"""`axcore serve`: what it refuses before it loads anything, and how it lives and ends."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from click.testing import CliRunner
from quick_flags import quick_environment

from axcore.cli.main import group
from axcore.config import update_config
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.inference import Sampling
from axcore.runs import export_run, load_run, open_model
from axcore.serving import listen
from axcore.testing.tiny import small_experiment


def refused(*words) -> AxcoreError:
    """Returns the error that a command ends with."""
    result = CliRunner().invoke(group, ["serve", *words])
    assert isinstance(result.exception, AxcoreError), (result.output, result.exception)
    return result.exception


def test_a_port_that_is_taken_is_an_error_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused("runs/none", "--port", str(port))
    assert f"port {port} of 127.0.0.1 is taken\n" in str(error)
    assert "--port 0 takes any that is free" in str(error)


@pytest.mark.parametrize("port", ["99999", "-4"])
def test_a_port_that_there_is_not_is_refused(port):
    """Sockets take it modulo 65536, and listen somewhere else."""
    result = CliRunner().invoke(group, ["serve", "runs/none", "--port", port])
    assert result.exit_code == 2
    assert f"{port} is not in the range 0<=x<=65535" in result.output


@pytest.mark.parametrize("host", ["elsewhere.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_an_error(host):
    with pytest.raises(ConfigError, match=f"'{host}' is not an address of this machine"):
        listen(host, 0)


def test_a_setting_that_is_none_is_an_error_with_what_is_near():
    assert "did you mean 'max_num_seqs'" in str(refused("x", "--set", "engine.max_num_seq=3"))


def test_what_is_no_model_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such directory"):
        open_model(tmp_path / "none")
    with pytest.raises(CheckpointError, match="not a run directory"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(AxcoreError, match="unheard-of"):
        open_model(tmp_path)
    with pytest.raises(ConfigError, match="a pretrained checkpoint has no steps"):
        open_model(tmp_path, step=3)


def test_an_extra_that_is_missing_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    assert 'uvicorn, which is not installed\n  hint:   pip install "axcore[serve]"' in str(
        refused("x")
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps, of which the first is known to be good, and its config."""
    folder = tmp_path_factory.mktemp("served")
    cfg = update_config(small_experiment(folder / "text"), {"checkpoint.every_steps": 1})
    cfg.build().run(folder / "run")
    return cfg, folder / "run"


@contextlib.contextmanager
def served(folder):
    """Yields a process that serves a folder, and its address."""
    few = ("max_num_seqs=2", "max_length=32", "max_num_batched_tokens=20", "num_decode_steps=1")
    sets = [word for one in few for word in ("--set", f"engine.{one}")]
    command = [sys.executable, "-m", "axcore", "serve", str(folder), "--port", "0", *sets]
    process = subprocess.Popen(
        [*command, "--set", "watch_s=0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **quick_environment()},
    )
    line = process.stdout.readline()
    found = re.search(r"http://[\d.:]+/", line)
    if found is None:
        process.kill()
        pytest.fail(line + process.stderr.read())
    assert process.stdout.readline().startswith("curl ")  # communicate() skips what is buffered
    try:
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def server(trained):
    """A server of the run in a process of its own, and its address."""
    with served(trained[1]) as found:
        yield found


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as found:
        return found.read().decode()


LONG = {"prompt": "a", "max_tokens": 30, "temperature": 0, "ignore_eos": True}


@pytest.mark.slow
def test_newer_weights_are_taken_over_and_a_signal_drains(trained, server):
    cfg, run = trained
    process, url = server
    before = json.loads(ask(url, "v1/completions", LONG))
    assert json.loads(ask(url, "stats"))["step"] == 2
    lengths, stop = [], threading.Event()

    def keep_asking():
        while not stop.is_set():
            reply = json.loads(ask(url, "v1/completions", LONG))
            lengths.append(reply["usage"]["completion_tokens"])

    asking = threading.Thread(target=keep_asking)
    asking.start()
    update_config(cfg, {"max_steps": 6}).build().run(run)
    deadline = time.monotonic() + 60
    while json.loads(ask(url, "stats"))["step"] != 6:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stop.set()
    asking.join()
    assert set(lengths) == {30}
    assert json.loads(ask(url, "v1/completions", LONG))["choices"] != before["choices"]
    request = urllib.request.Request(
        f"{url}v1/completions",
        json.dumps({**LONG, "stream": True, "n": 64}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        stream.readline()
        process.send_signal(signal.SIGTERM)
        assert stream.read().endswith(b"data: [DONE]\n\n")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "compiling: done in" in said
    assert "weights of step 6 answer now" in said
    assert "draining: 1 requests are being answered" in said


@pytest.mark.slow
def test_sigterm_ends_a_server_that_is_not_ready_yet(trained):
    """Whether it was still loading or had just begun to answer, it ends with 0 and says so."""
    command = [sys.executable, "-m", "axcore", "serve", str(trained[1]), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **quick_environment()},
    ) as process:
        said = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said += process.stdout.read()
    assert process.returncode == 0, said
    assert "ended" in said


@pytest.mark.slow
def test_the_folder_of_a_published_model_is_served_and_answers_as_its_run(trained, tmp_path):
    run = load_run(trained[1])
    export_run(run, tmp_path / "published")
    expected = run.generate("The ", max_tokens=8, sampling=Sampling(temperature=0)).text
    asked = {"prompt": "The ", "max_tokens": 8, "temperature": 0}
    with served(tmp_path / "published") as (process, url):
        (model,) = json.loads(ask(url, "v1/models"))["data"]
        assert (model["id"], model["step"]) == ("published", None)
        answer = json.loads(ask(url, "v1/completions", {**asked, "model": "published"}))
        assert answer["choices"][0]["text"] == expected
        assert "<title>axcore serve</title>" in ask(url, "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
