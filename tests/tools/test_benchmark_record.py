"""Benchmarks record what they measured wherever results are to go."""

import importlib.util
import json
from pathlib import Path

RECORD = Path(__file__).parents[2] / "benchmarks" / "_record.py"


def test_results_that_go_elsewhere_name_the_script_as_the_repository_does(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("sys.argv", [str(RECORD.with_name("moe.py")), "--only", "forward"])
    spec = importlib.util.spec_from_file_location("_record", RECORD)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

    path = made.record("moe", {"time_s": 1.5})

    assert path == tmp_path / "results" / "moe.json"
    content = json.loads(path.read_text())
    assert content["command"] == "python benchmarks/moe.py --only forward"
    assert content["figures"] == {"time_s": 1.5}
