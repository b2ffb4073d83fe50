"""Processes of a run compare what they are made of, and all stop where any two differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from quick_flags import xla_flags
from several_processes import free_address

from axcore.errors import PluginError
from axcore.ops import KernelPlan
from axcore.plugins.consistency_check import first_difference, require_consistency
from axcore.testing import make_dist
from axcore.trainer.run_directory.code import loaded_sources
from axcore.trainer.run_directory.consistency_check import (
    check_processes_agree,
    fingerprint_of_process,
)

PROCESS = """
import sys
import jax
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from axcore.errors import PluginError
from axcore.ops import KernelPlan
from axcore.trainer.run_directory.consistency_check import check_processes_agree
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
