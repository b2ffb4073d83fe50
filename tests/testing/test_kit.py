"""The kit itself: suites that fail where they should, fixtures, and a light start of pytest."""

import subprocess
import sys

import pytest

import axcore.testing
from axcore.config import to_json
from axcore.errors import PluginError
from axcore.plugins import plugin_host
from axcore.testing import KernelSuite

pytest_plugins = ["pytester"]

ACME = """
from axcore.plugins import *

@hook.{hook}
def {hook}():
    yield {record}
"""
KERNEL = (
    'Kernel(op="cross_entropy", name="acme", priority=200, forward=Ref("axl_acme.loss:loss"),'
    ' is_differentiable=True, unsupported_reason=Ref("axl_acme.loss:unsupported_reason"))'
)
LOSS = """
from jax.lax import stop_gradient
from axcore.ops.cross_entropy.kernels import cross_entropy_reference

def unsupported_reason(call):
    return {answer}

def without_value(x):
    return x - stop_gradient(x)

def loss(inputs, spec):
    sums = cross_entropy_reference(inputs, spec)
    return sums._replace(loss={loss})
"""
KERNEL_TESTS = """
from axcore.testing import KernelSuite

class TestKernels(KernelSuite):
    plugin = "axl-acme"
    dtypes = ("float32",)
    case_names = ("plain",)
"""


def test_pytest_starts_without_jax_or_the_plugin_host():
    program = (
        "import sys, axcore.testing.pytest_plugin; "
        "print([m for m in ('jax', 'attrs', 'numpy', 'axcore.plugins') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n" or ran.stdout == "['attrs']\n"


def test_everything_that_the_kit_lists_is_there():
    for name in axcore.testing.__all__:
        assert getattr(axcore.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'KernelSuit'"):
        axcore.testing.KernelSuit  # noqa: B018


def run_suite(pytester, make_dist, tests: str):
    """Runs tests in this process, on what `make_dist` installed."""
    pytester.makepyfile(tests)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q", "-rA")


@pytest.mark.parametrize(
    ("loss", "answer", "failing"),
    [
        ("sums.loss", "None", []),
        ("sums.loss * 1.001", "None", ["equals_the_reference"]),
        ("sums.loss + without_value(inputs.w.sum())", "None", ["equals_the_reference"]),
        ("sums.loss", "''", ["predicates", "accepts_some_case"]),
        ("sums.loss", "'never'", ["accepts_some_case"]),
        ("sums.loss", "__import__('jax').devices() and None", ["predicates"]),
    ],
)
def test_kernel_suite_passes_right_kernels_only(pytester, make_dist, loss, answer, failing):
    source = LOSS.format(loss=loss, answer=answer)
    make_dist("axl-acme", ACME.format(hook="kernels", record=KERNEL), files={"loss.py": source})
    ran = run_suite(pytester, make_dist, KERNEL_TESTS)
    failed = [line for line in ran.outlines if line.startswith("FAILED")]
    assert bool(failed) == bool(failing)
    for part in failing:
        assert any(part in line for line in failed)


MESH_RULE_TESTS = """
from axcore.testing import MeshRuleSuite

class TestMeshRules(MeshRuleSuite):
    plugin = "axl-acme"
"""
NUMBERS = """
from axcore.config import config, update_config

@config
class Steeper:
    def apply(self, cfg, hardware):
        return update_config(cfg, {"**.schedule.peak": 1.0})
"""


@pytest.mark.parametrize(
    ("rule", "failing"),
    [
        ('MeshRule(match="cpu-1", mesh={"data": -1})', []),
        ('MeshRule(match="cpx-*", mesh={"data": -1})', ["matches_hardware"]),
        ('MeshRule(match="cpu-1", mesh={"data": 3})', ["mesh_fits"]),
        ('MeshRule(match="cpu-1", mesh={"date": -1})', ["mesh_fits"]),
        (
            'MeshRule(match="cpu-1", mesh={"data": -1}, '
            'modifiers=(Ref("axl_acme.numbers:Steeper").resolve()(),))',
            ["change_layout_and_no_number"],
        ),
    ],
)
def test_mesh_rule_suite_passes_right_rules_only(pytester, make_dist, rule, failing):
    plugin = ACME.format(hook="mesh_rules", record=rule)
    make_dist("axl-acme", plugin, files={"numbers.py": NUMBERS})
    ran = run_suite(pytester, make_dist, MESH_RULE_TESTS)
    failed = [line for line in ran.outlines if line.startswith("FAILED")]
    assert bool(failed) == bool(failing), ran.outlines
    for part in failing:
        assert any(part in line for line in failed)


def test_plugin_suite_finds_a_reference_that_leads_nowhere(pytester, make_dist):
    make_dist("axl-acme", ACME.format(hook="kernels", record=KERNEL))
    tests = "from axcore.testing import PluginSuite\n"
    tests += "class TestPlugin(PluginSuite):\n    plugin = 'axl-acme'"
    ran = run_suite(pytester, make_dist, tests)
    failed = [line for line in ran.outlines if line.startswith("FAILED")]
    assert any("every_reference_leads_somewhere" in line for line in failed)
    assert any("there is no module 'axl_acme.loss'" in line for line in ran.outlines)


def test_suite_without_records_is_an_error_and_not_an_empty_success(make_dist):
    make_dist("axl-acme", ACME.format(hook="kernels", record=KERNEL))

    class Suite(KernelSuite):
        plugin = "axl-acme"
        keys = ("cross_entropy/acne",)

    with pytest.raises(PluginError, match=r"brings no kernel \['cross_entropy/acne'\]"):
        Suite.records()
    Suite.plugin, Suite.keys = "axl-attention", None
    with pytest.raises(PluginError, match="plugin 'axl-attention' brings no Kernel at all"):
        Suite.records()


def test_host_is_that_of_the_process(host):
    assert host is plugin_host()


def test_distribution_is_installed_for_one_test_only(make_dist, request):
    package = make_dist("axl-acme", ACME.format(hook="kernels", record=KERNEL))
    assert plugin_host().plugin("axl-acme").state == "loaded"
    assert str(package.parent) in sys.path
    request.getfixturevalue("host")


def test_mesh_has_the_sizes_asked_for(cpu_mesh):
    mesh = cpu_mesh(fsdp=2, model=4)
    assert {name: size for name, size in mesh.shape.items() if size > 1} == {"fsdp": 2, "model": 4}


@pytest.mark.slow
def test_tiny_experiment_is_whole_and_the_command_line_reads_it(tiny_experiment, cli, tmp_path):
    assert tiny_experiment.build().kernel_plan().choices
    (tmp_path / "small.json").write_text(to_json(tiny_experiment))
    ran = cli("config", "diff", "small.json", "--set", "max_steps=3")
    assert (ran.exit_code, ran.stdout) == (1, "- max_steps: 2\n+ max_steps: 3\n")


def test_command_line_sees_what_a_test_installed(make_dist, cli):
    make_dist("axl-acme", "1 / 0")
    ran = cli("plugins")
    assert "axl-acme failed: ZeroDivisionError" in ran.stdout
    assert cli("plugins", AXCORE_BLOCK="axl-acme").stdout.count("blocked") == 2
