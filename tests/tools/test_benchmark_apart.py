"""Benchmarks that compile do so in a process whose environment is the target's."""

import importlib.util
from pathlib import Path

import pytest

APART = Path(__file__).parents[2] / "benchmarks" / "_apart.py"


@pytest.fixture
def apart(monkeypatch):
    monkeypatch.syspath_prepend(APART.parent)
    spec = importlib.util.spec_from_file_location("_apart", APART)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_the_last_line_of_a_process_that_shows_the_targets_devices(apart, monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--one")
    script = (
        "import json, os; print('compiling'); "
        "print(json.dumps({name: os.environ[name] for name in ('XLA_FLAGS', 'LIBTPU_INIT_ARGS')}))"
    )
    figures = apart.measured_apart("cpu-4", "-c", script, libtpu_flags="--two")
    assert "xla_force_host_platform_device_count=4" in figures["XLA_FLAGS"]
    assert figures["LIBTPU_INIT_ARGS"] == "--one --two"
