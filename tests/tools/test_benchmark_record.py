"""Benchmarks record what they measured, and from what, wherever results are to go."""

import importlib.util
import json
from importlib.metadata import version
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[2] / "benchmarks" / "_record.py"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Returns the module as a benchmark imports it, whose results go elsewhere."""
    monkeypatch.setenv("BENCHMARK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("sys.argv", [str(RECORD.with_name("moe.py")), "--only", "8 experts"])
    spec = importlib.util.spec_from_file_location("_record", RECORD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_that_go_elsewhere_name_the_script_as_the_repository_does(made, tmp_path):
    path = made.record("moe", {"time_s": 1.5})

    assert path == tmp_path / "results" / "moe.json"
    content = json.loads(path.read_text())
    assert content["command"] == "python benchmarks/moe.py --only '8 experts'"
    assert content["figures"] == made.recorded("moe") == {"time_s": 1.5}


def test_a_row_names_its_command_commit_date_and_compilers(made, monkeypatch):
    monkeypatch.setattr(made, "COMPILERS", {"tpu": ("pluggy",), "gpu": ("no-such-package",)})
    monkeypatch.setattr(made, "_git", lambda *given: "0123456789ab" * (given[0] == "rev-parse"))
    rows = {target: made.stamped({"step_s": 2.0}, target) for target in ("tpu-v5e-4", "gpu-h100-8")}

    on_tpu, on_gpu = (row["made"] for row in rows.values())
    assert rows["tpu-v5e-4"]["step_s"] == 2.0
    assert on_tpu["command"] == "python benchmarks/moe.py --only '8 experts'"
    assert on_tpu["commit"] == "0123456789ab"
    assert on_tpu["date"].endswith("+00:00")
    assert on_tpu["versions"]["pluggy"] == version("pluggy")
    assert on_tpu["versions"]["jax"] == version("jax")
    assert not {"pluggy", "no-such-package"} & set(on_gpu["versions"])


def test_a_row_of_changed_sources_says_so(made, monkeypatch):
    monkeypatch.setattr(made, "_git", lambda *given: "0123456789ab")
    assert made.stamped({}, "cpu-1")["made"]["commit"] == "0123456789ab, changed"
