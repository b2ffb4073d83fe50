"""`axcore plugin check`: the suites of a plugin without a test file."""

import importlib.util

import pytest

from axcore.cli.plugin_check import check_source, run_check
from axcore.errors import PluginError

BROKEN = """
from axcore.plugins import LayerVariant, Ref, hook

@hook.layer_variants
def layer_variants():
    yield LayerVariant(name="acme", config=Ref("axl_acme.norm:Norm.Config"),
                       replaces=Ref("axcore.layers:RMSNorm"), summary="Norm")
"""


def test_plugin_is_checked_by_the_suites_that_its_records_ask_for():
    source = check_source("axl-gpu")
    assert "from axcore.testing import KernelSuite, MeshRuleSuite, PluginSuite\n" in source
    assert 'class TestKernel(KernelSuite):\n    plugin = "axl-gpu"\n' in source
    compile(source, "test_plugin.py", "exec")


@pytest.mark.slow
def test_wrong_plugin_fails_with_what_is_wrong(cli, make_dist):
    make_dist("axl-acme", BROKEN)
    ran = cli("plugin", "check", "axl-acme")
    assert ran.exit_code == 1
    assert "there is no module 'axl_acme.norm'" in ran.stdout


def test_check_without_pytest_says_what_to_install(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pytest" else find_spec(name)
    )
    with pytest.raises(PluginError, match="which is not installed") as raised:
        run_check(check_source("axl-gpu"), here=False)
    assert raised.value.hint == 'pip install "axcore[test]"'


def test_shown_file_is_not_run(cli):
    ran = cli("plugin", "check", "axl-attention", "--show")
    assert ran.stdout == check_source("axl-attention")


def test_plugin_that_is_not_there_or_broken_is_refused(cli, make_dist):
    with pytest.raises(PluginError, match="no plugin 'axl-atention' is installed; did you mean"):
        check_source("axl-atention")
    make_dist("axl-acme", "1 / 0")
    with pytest.raises(PluginError, match="plugin 'axl-acme' is failed: ZeroDivisionError"):
        check_source("axl-acme")
