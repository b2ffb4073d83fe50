"""Environment flags: merged one by one, the user's own first, conflicts and lateness refused."""

import os
import subprocess
import sys

import pytest

from axcore._jax_compat import devices_have_started
from axcore.errors import PluginError
from axcore.plugins import EnvironmentFlags, Hardware, Ref, set_environment_flags
from axcore.plugins.flags import (
    expected_hardware,
    merge_flags,
    wanted_flags,
)

CPU = Hardware.parse("cpu-8")
FLAGS = """
def overlap(hardware): return {"--acme_overlap": "true", "--acme_chips": str(hardware.chips)}
def serial(hardware): return {"--acme_overlap": "false"}
def words(hardware): return "--acme_overlap=true"
def number(hardware): return {"--acme_chips": 8}
def bare(hardware): return {"acme_chips": "8"}
"""


@pytest.fixture
def record(installed):
    """Returns a record whose function is one of those above."""
    installed.add("axl-acme", files={"flags.py": FLAGS})

    def make(function: str, plugin: str = "axl-acme", variable: str = "ACME_FLAGS"):
        fn = Ref(f"axl_acme.flags:{function}")
        made = EnvironmentFlags(name=function, variable=variable, fn=fn, summary="")
        return made.stamped(plugin)

    return make


def merged(environment, *records):
    return merge_flags(wanted_flags(CPU, records), environment)


def test_flags_join_those_of_the_user(record):
    found = merged({"ACME_FLAGS": "--mine=3"}, record("overlap"))
    assert found.changes == {"ACME_FLAGS": "--mine=3 --acme_overlap=true --acme_chips=8"}
    assert found.kept == ()


def test_flag_of_the_user_wins_and_the_others_are_still_set(record):
    found = merged({"ACME_FLAGS": "--acme_overlap=false"}, record("overlap"))
    assert found.changes == {"ACME_FLAGS": "--acme_overlap=false --acme_chips=8"}
    assert [one.text for one in found.kept] == ["--acme_overlap=true"]


def test_nothing_changes_where_the_user_has_set_the_same(record):
    found = merged({"ACME_FLAGS": "--acme_chips=8 --acme_overlap=true"}, record("overlap"))
    assert (found.changes, found.kept) == ({}, ())


def test_variables_are_apart(record):
    found = merged({}, record("overlap"), record("serial", variable="OTHER_FLAGS"))
    assert found.changes["OTHER_FLAGS"] == "--acme_overlap=false"


def test_two_values_of_one_flag_are_refused_naming_both_plugins(record):
    with pytest.raises(PluginError) as refused:
        wanted_flags(CPU, [record("overlap"), record("serial", plugin="axl-other")])
    assert refused.value.what == (
        "ACME_FLAGS: overlap (axl-acme) wants --acme_overlap=true and "
        "serial (axl-other) wants --acme_overlap=false"
    )
    assert "AXCORE_BLOCK=axl-other" in (refused.value.hint or "")


def test_one_value_wanted_twice_is_set_once(record):
    flags = wanted_flags(CPU, [record("overlap"), record("overlap", plugin="axl-other")])
    assert [one.text for one in flags] == ["--acme_overlap=true", "--acme_chips=8"]


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("words", "returned '--acme_overlap=true'"),
        ("number", "returned {'--acme_chips': 8}"),
        ("bare", "returned {'acme_chips': '8'}"),
    ],
)
def test_what_is_no_mapping_of_flags_is_refused_naming_the_plugin(record, function, shown):
    with pytest.raises(PluginError, match="AXCORE_BLOCK=axl-acme") as refused:
        wanted_flags(CPU, [record(function)])
    of_plugin = f"the `fn` of environment flags '{function}' of plugin 'axl-acme',"
    assert f"{of_plugin} {shown}; expected a mapping from --flag" in str(refused.value)


def test_variable_that_holds_no_flags_is_refused(record):
    with pytest.raises(
        PluginError, match="ACME_FLAGS contains '/etc/flags', so --acme_overlap=true"
    ):
        merged({"ACME_FLAGS": "/etc/flags"}, record("overlap"))


def test_flags_for_other_hardware_are_not_set():
    texts = [wanted.text for wanted in wanted_flags(CPU)]
    assert texts == ["--xla_force_host_platform_device_count=8"]


def test_flags_are_refused_once_jax_has_started(monkeypatch):
    import jax

    jax.devices()
    assert devices_have_started()
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(PluginError, match="JAX has started, so it would not read XLA_FLAGS="):
        set_environment_flags(CPU)
    assert os.environ["XLA_FLAGS"] == ""


def test_flags_that_are_set_already_are_not_too_late(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert set_environment_flags(CPU).changes == {}


@pytest.mark.slow
def test_flags_set_in_time_are_read_by_jax():
    program = (
        "from axcore.plugins import Hardware, set_environment_flags as s; import jax; "
        "s(Hardware.parse('cpu-3')); print(len(jax.devices()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
    )
    assert ran.stdout == "3\n"


def test_hardware_is_expected_only_where_a_plugin_sees_it():
    assert expected_hardware({"JAX_PLATFORMS": "cpu"}) is None
