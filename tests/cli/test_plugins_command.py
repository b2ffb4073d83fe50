"""`axcore plugins`, `axcore kernels` and `axcore doctor`: what they show of what is installed."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

import axcore.cli.doctor as doctor_module
from axcore.cli.doctor import (
    OWN_VARIABLES,
    environment_findings,
    findings,
    jax_finding,
    process_findings,
)
from axcore.cli.main import main
from axcore.cli.plugins import check_source, run_check
from axcore.errors import KernelError, PluginError
from axcore.plugins import DoctorCheck, Finding, Ref, plugin_host
from axcore.plugins.discovery import BLOCK
from axcore.plugins.loading import TIMEOUT
from axcore.testing import make_dist

ACME = """
from axcore.plugins import *

@hook.hardware_families
def hardware_families():
    x1 = Hardware(family="acme", generation="x1", chips=4, features={"matrix"})
    x2 = Hardware(family="acme", generation="x2", chips=4)
    yield HardwareFamily(name="acme", hosts=(x1, x2), detect=Ref("axl_acme.d:d"), summary="")

@hook.ops
def ops():
    yield Op(name="fft", fn=Ref("axl_acme.fft:fft"), summary="")

@hook.kernels
def kernels():
    ref = Ref("axl_acme.fft:fast")
    yield Kernel(op="fft", name="slow", priority=0, forward=ref)
    only = requires(features="matrix")
    yield Kernel(op="fft", name="fast", priority=200, forward=ref, requires=only)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder whose distributions are installed for this process, whose host is loaded again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    plugin_host.cache_clear()
    yield tmp_path
    plugin_host.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("axl_acme"):
            del sys.modules[name]


@pytest.fixture
def run(capsys):
    """Runs `axcore` in this process; returns its exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        importlib.invalidate_caches()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        code = ended.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return run


def rows(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.split("\n\n")[0].splitlines()}


def test_listing_names_distribution_version_level_state_and_hooks(root, run):
    make_dist(root, "axl-acme", ACME, version="3.1")
    code, out, _ = run("plugins")
    assert code == 0
    row = rows(out)["axl-acme"]
    assert row[1:5] == ["axl-acme", "3.1", "v1", "loaded"]
    assert row[7:] == ["hardware_families,", "kernels,", "ops"]


def test_failed_plugin_is_shown_with_its_error_and_the_command_succeeds(root, run):
    make_dist(root, "axl-acme", "raise ValueError('bad weather')")
    code, out, err = run("plugins")
    assert (code, err) == (0, "")
    assert rows(out)["axl-acme"][4] == "failed"
    assert "axl-acme failed: ValueError: bad weather" in out
    assert "Traceback" not in out


def test_verbose_listing_shows_records_and_tracebacks(root, run):
    make_dist(root, "axl-acme", ACME)
    make_dist(root, "axl-acme-two", "raise ValueError('bad weather')")
    _, out, _ = run("plugins", "-v")
    assert "  kernel: fft/fast" in out
    assert f'File "{root}/axl_acme_two/plugin.py", line 1' in out


def test_hint_of_a_plugin_error_is_shown(root, run):
    make_dist(root, "axl-acme", "from axcore.plugins import hook\n@hook.kernals\ndef f(): ...")
    _, out, _ = run("plugins")
    assert "axl-acme failed: there is no hook 'kernals'; did you mean 'kernels'" in out
    assert "hint:   use one of `axcore.plugins.hook`" in out


def test_json_listing_holds_what_the_listing_shows(root, run):
    make_dist(root, "axl-acme", "1 / 0", level=1)
    make_dist(root, "axl-acme-old", level=0, plugin="")
    _, out, _ = run("plugins", "--json")
    found = {plugin["name"]: plugin for plugin in json.loads(out)}
    assert found["axl-acme"]["state"] == "failed"
    assert found["axl-acme"]["error"] == "ZeroDivisionError: division by zero"
    assert found["axl-acme-old"]["state"] == "incompatible"
    assert found["core"]["error"] is None
    assert {"kind": "op", "key": "attention"} in found["core"]["records"]


def test_wrong_variable_shows_the_listing_and_then_the_error(root, run, monkeypatch):
    monkeypatch.setenv("AXCORE_BLOCK", "axl-nothing")
    code, out, err = run("plugins")
    assert code == PluginError.exit_code
    assert "core" in rows(out)
    assert "PluginError: AXCORE_BLOCK names 'axl-nothing', and no such plugin is installed" in err


def test_kernels_are_listed_best_first_with_the_reason_against_each(root, run):
    make_dist(root, "axl-acme", ACME)
    _, out, _ = run("kernels", "fft", "--target", "acme-x2-8")
    assert out.splitlines()[0] == "target acme-x2-8"
    assert [line.split(maxsplit=4) for line in out.splitlines()[2:]] == [
        ["fft", "fast", "axl-acme", "no", "no: wants matrix, which acme-x2-8 does not have"],
        ["fft", "slow", "axl-acme", "-", "when pinned: it defines what the op means"],
    ]


def test_kernels_as_json_name_the_target_and_why_not(root, run):
    make_dist(root, "axl-acme", ACME)
    _, out, _ = run("kernels", "fft", "--target", "acme-x1-4", "--json")
    listed = json.loads(out)
    assert listed["target"] == "acme-x1-4"
    assert [kernel["unsupported_reason"] for kernel in listed["kernels"]] == [None, None]


def test_kernels_are_asked_about_a_typical_call(run):
    _, out, _ = run("kernels", "attention", "--target", "h200-8")
    lines = out.splitlines()
    assert lines[0] == "target gpu-h200-8"
    assert lines[1].startswith("call attention(q bfloat16[2,4096,32,128], k bfloat16[2,4096,8,128]")
    verdicts = {row[1]: row[4] for row in (line.split(maxsplit=4) for line in lines[3:-1])}
    told = {
        "cudnn_attention": "when pinned",
        "gpu_packed_flash_attention": "yes",
        "gpu_flash_attention": "when pinned",
        "cudnn_wide_attention": (
            "not this call: takes widths over 128, or values of another width than keys"
        ),
        "portable": "when allowed",
        "blockwise": "when pinned: a part of the portable kernel, kept for comparison",
        "cudnn_packed_attention": (
            "not this call: takes as many key heads as query heads, not 8 and 32"
        ),
        "reference": "when pinned: it defines what the op means",
    }
    assert told.items() <= verdicts.items()


def test_kernels_of_other_hardware_are_counted_and_shown_if_asked_for(run):
    _, short, _ = run("kernels", "attention", "--target", "h100-8")
    _, whole, _ = run("kernels", "attention", "--target", "h100-8", "--all")
    assert "splash_attention" not in short
    reasons = {
        row[1]: row[4] for row in (line.split(maxsplit=4) for line in whole.splitlines()[3:])
    }
    assert reasons["splash_attention"] == "no: wants family tpu, not gpu-h100-8"
    hidden = len(whole.splitlines()) - len(short.splitlines()) + 1
    assert short.splitlines()[-1] == f"{hidden} kernels of other hardware: --all shows them"


@pytest.mark.parametrize("target", ["tpu-v5p-8", "gpu-h100-8", "trn2-16", "cpu-1"])
def test_each_typical_call_is_served_on_each_target(run, target):
    _, out, _ = run("kernels", "--target", target, "--json")
    listed = json.loads(out)
    for kernel_choice in ("validated", "fastest"):
        served = [one["op"] for one in listed["kernels"] if kernel_choice in one["serves_with"]]
        assert set(served) >= set(listed["calls"])
        assert len(served) == len(set(served)) or "quantized_dot" in served


def test_kernels_of_no_target_are_for_this_machine(root, run):
    assert run("kernels", "attention")[1].splitlines()[0] == "target cpu-16"


def test_kernels_of_an_unknown_op_or_target_are_refused(root, run):
    code, _, err = run("kernels", "atention", "--target", "cpu-1")
    assert code == KernelError.exit_code
    assert "there is no op 'atention'; did you mean 'attention'" in err
    code, _, err = run("kernels", "attention", "--target", "gpx-h100-8")
    assert code == PluginError.exit_code
    assert "no plugin knows target 'gpx-h100-8'" in err


def test_doctor_reports_a_broken_plugin_with_its_hint_and_fails(root, run):
    make_dist(root, "axl-acme", "1 / 0", version="3.1")
    code, out, _ = run("doctor")
    assert code == 1
    assert "ERROR    plugins: axl-acme 3.1 failed: ZeroDivisionError: division by zero" in out
    assert "or set AXCORE_BLOCK=axl-acme" in out


def test_doctor_of_a_healthy_machine_succeeds_and_names_it(root, run):
    code, out, _ = run("doctor", "--json")
    assert code == 0
    texts = [found["text"] for found in json.loads(out) if found["check"] == "devices"]
    assert texts == ["this machine is cpu-16"]


def check(root: Path, body: str) -> list[Finding]:
    make_dist(root, "axl-acme", "", files={"doctor.py": body})
    importlib.invalidate_caches()
    ref = Ref("axl_acme.doctor:look")
    return list(findings(DoctorCheck(name="chip", fn=ref, summary="", plugin="axl-acme")))


def test_check_that_raises_is_an_error_that_names_its_plugin(root):
    (found,) = check(root, "def look(): 1 / 0")
    assert found.level == "error"
    assert found.text == "the check itself failed: ZeroDivisionError: division by zero"
    assert "AXCORE_BLOCK=axl-acme" in found.hint


def test_check_that_yields_something_else_is_an_error(root):
    (found,) = check(root, "def look(): yield 'fine'")
    assert found.text.startswith("the check itself failed: axl_acme.doctor:look, the `fn` of")
    assert found.text.endswith("returned 'fine'; expected an iterable of Finding, got str")


def test_check_that_does_not_finish_is_an_error_with_its_line(root, monkeypatch):
    monkeypatch.setattr("axcore.cli.doctor.TIMEOUT_S", 0.2)
    (found,) = check(root, "import time\ndef look():\n    time.sleep(600)\n    yield")
    assert found.text.startswith("the check has not ended after 0.2 s; it is at ")
    assert found.text.endswith("doctor.py:3")
    assert "AXCORE_BLOCK=axl-acme" in found.hint


def test_finding_of_trouble_must_say_how_to_fix_it():
    with pytest.raises(PluginError, match="'warning' says how to fix it"):
        Finding("warning", "hot")
    with pytest.raises(PluginError, match="expected 'ok' or 'warning' or 'error'"):
        Finding("fine", "cold")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("versions", "level", "text"),
    [
        (("0.9.2", "0.9.2"), "error", "axcore wants 0.10 or newer"),
        (("0.13.0", "0.13.0"), "warning", "newer than axcore was tried with"),
        (("0.11.1", "0.10.2"), "error", "jax is 0.11.1 and jaxlib 0.10.2"),
        (("0 (missing)", "0.10.2"), "error", "axcore wants 0.10"),
        (("0.10.2", "0.10.2"), "ok", "jax 0.10.2"),
    ],
)
def test_versions_of_jax_are_judged(versions, level, text):
    found = jax_finding(*versions)
    assert found.level == level
    assert text in found.text


def test_doctor_knows_the_variables_that_axcore_reads():
    assert {TIMEOUT, BLOCK} <= set(OWN_VARIABLES)


def test_variables_that_nothing_reads_are_found():
    variables = {"JAX_PLATFORM": "cpu", "JAX_PLATFORMS": "cpu", "AXCORE_BLOK": "a", "HOME": "/"}
    known = ["JAX_PLATFORMS", "AXCORE_BLOCK", "XLA_FLAGS"]
    texts = [found.text for found in environment_findings(variables, known)]
    assert texts == [
        "AXCORE_BLOK is set and nothing reads it; did you mean 'AXCORE_BLOCK'?",
        "JAX_PLATFORM is set and nothing reads it; did you mean 'JAX_PLATFORMS'?",
    ]


def test_variables_that_place_a_process_are_read():
    (alone,) = process_findings({})
    assert alone.text == "a run of one process, as far as variables say"
    variables = {"AXCORE_COORDINATOR": "a:1", "AXCORE_NUM_PROCESSES": "4", "AXCORE_PROCESS_ID": "2"}
    (placed,) = process_findings(variables)
    assert placed.text == "process 2 of 4, says flags; process 0 is at a:1"
    (half,) = process_findings({"AXCORE_NUM_PROCESSES": "4"})
    assert (half.level, half.text) == (
        "error",
        "--num-processes without --coordinator, --process-id",
    )
    (wrong,) = process_findings({**variables, "AXCORE_PROCESS_ID": "two"})
    assert (wrong.level, "expected a number" in wrong.text) == ("error", True)


def test_flag_without_dashes_is_found():
    variables = {"XLA_FLAGS": "--xla_a=1 xla_b=2"}
    (found,) = environment_findings(variables, ["XLA_FLAGS"])
    assert found.text == "XLA_FLAGS contains 'xla_b=2'"


def test_doctor_names_what_confines_programs_here_and_what_to_install(monkeypatch):
    reasons = {"bubblewrap": "bwrap is not installed", "namespaces": None, "landlock": None}
    monkeypatch.setattr(doctor_module, "why_not", reasons.get)
    (found,) = doctor_module.sandbox()
    assert (found.level, "run under namespaces" in found.text) == ("ok", True)
    assert "bubblewrap does not work: bwrap is not installed" in found.text
    monkeypatch.setattr(doctor_module, "why_not", lambda name: "no")
    (found,) = doctor_module.sandbox()
    assert (found.level, found.hint) == ("warning", "apt install bubblewrap libseccomp2")


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
