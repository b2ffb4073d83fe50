"""What becomes of a plugin: found, blocked, incompatible, loaded or failed, and what runs do."""

import subprocess
import sys

import pytest

from axcore.errors import PluginError
from axcore.plugins import Kernel, MeshRule, Op, load_host
from axcore.plugins.discovery import discover

RULE = 'MeshRule(match="acme-*", mesh={"fsdp": -1})'
RULES = f"from axcore.plugins import *\n@hook.mesh_rules\ndef mesh_rules():\n    yield {RULE}"
KERNEL = 'Kernel(op="attention", name="flash", priority=200, forward=Ref("axl_acme.flash:run"))'


def test_plugin_is_loaded_and_its_records_are_stamped(installed, source):
    installed.add("axl-acme", source(f"@hook.kernels\ndef kernels():\n    yield {KERNEL}"))
    host = installed.host()
    plugin = host.plugin("axl-acme")
    assert (plugin.state, plugin.hooks) == ("loaded", ("kernels",))
    kernel = next(kernel for kernel in host.records(Kernel) if kernel.name == "flash")
    assert kernel.plugin == kernel.forward.plugin == "axl-acme"
    host.require_healthy()


def test_discovery_imports_nothing(installed):
    installed.add("axl-acme", "raise SystemExit('imported')")
    found = next(one for one in discover() if one.distribution == "axl-acme")
    assert (found.name, found.module, found.level) == ("axl-acme", "axl_acme.plugin", 1)
    assert "axl_acme" not in sys.modules


def test_core_brings_its_records_through_the_same_hooks(installed):
    host = installed.host()
    assert [plugin.name for plugin in host.plugins()] == ["core"]
    assert {op.name for op in host.records(Op)} >= {"attention", "cross_entropy"}
    assert {record.plugin for record in host.records(Op)} == {"core"}


def test_core_alone_is_loaded_without_jax():
    program = "import sys; from axcore.plugins import load_host; load_host({}, ()); "
    program += "sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_records_come_in_the_same_order_whatever_the_order_of_plugins(installed, source):
    body = '@hook.ops\ndef ops():\n    yield Op(name="{}", fn=Ref("a:b"), summary="")'
    installed.add("axl-b", source(body.format("apple")))
    installed.add("axl-a", source(body.format("zebra")))
    candidates = [one for one in discover() if one.distribution in installed.names]
    forwards, backwards = load_host({}, candidates), load_host({}, candidates[::-1])
    names = [op.name for op in forwards.records(Op)]
    assert names == sorted(names)
    assert forwards.records(Op) == backwards.records(Op)
    assert forwards.fingerprint() == backwards.fingerprint()


@pytest.mark.parametrize(
    ("body", "trouble"),
    [
        ("raise ValueError('bad weather')", "ValueError: bad weather"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError: invalid syntax"),
    ],
)
def test_plugin_that_raises_at_import_fails_alone(installed, source, body, trouble):
    installed.add("axl-acme", body)
    installed.add("axl-good", source(f"@hook.mesh_rules\ndef mesh_rules():\n    yield {RULE}"))
    host = installed.host()
    assert host.plugin("axl-acme").state == "failed"
    assert trouble in host.plugin("axl-acme").trouble
    assert host.plugin("axl-good").state == "loaded"


NEWER = "Name: axl-acme\nVersion: 1\nRequires-Dist: axcore[serve]>=9.0\n"


@pytest.mark.parametrize(
    ("file", "content", "trouble"),
    [
        ("METADATA", b"Name: axl-acme\nVersion: \xff\xfe\n", "its METADATA cannot be read"),
        ("METADATA", None, "its METADATA names no distribution and version"),
        ("METADATA", NEWER.encode(), "it requires axcore[serve]>=9.0, and this is axcore"),
        (
            "entry_points.txt",
            b"[axcore.v1]\naxl-acme = axl_acme.plugin:nothing",
            "expected a module",
        ),
        ("entry_points.txt", b"[axcore.v1\naxl-acme = axl_acme.plugin", "cannot be used"),
        (
            "entry_points.txt",
            b"[axcore.v1]\naxl-acme = \xff",
            "its entry_points.txt cannot be read",
        ),
        ("entry_points.txt", b"[axcore.v1]\n", "names axcore.v1 and no plugin"),
    ],
)
def test_plugin_of_broken_metadata_is_named_and_spreads_nothing(installed, file, content, trouble):
    installed.add("axl-acme", RULES)
    installed.add("axl-good", RULES)
    path = installed.root / "axl_acme-1.0.dist-info" / file
    path.unlink() if content is None else path.write_bytes(content)
    broken = load_host({}, [one for one in discover() if one.distribution == "axl-acme"])
    assert broken.plugin("axl-acme").state == "failed"
    assert trouble in broken.plugin("axl-acme").trouble
    assert installed.host().plugin("axl-good").state == "loaded"


def test_missing_plugin_module_fails_with_its_name(installed):
    (installed.add("axl-acme") / "plugin.py").unlink()
    assert "No module named 'axl_acme.plugin'" in installed.host().plugin("axl-acme").trouble


def test_plugin_that_raises_at_registration_brings_nothing(installed, source):
    body = f"@hook.mesh_rules\ndef mesh_rules():\n    yield {RULE}\n    raise OSError('no chip')"
    installed.add("axl-acme", source(body))
    plugin = installed.host().plugin("axl-acme")
    assert (plugin.state, plugin.trouble, plugin.records) == ("failed", "OSError: no chip", ())
    assert plugin.import_time_s is not None


@pytest.mark.parametrize(
    ("body", "trouble"),
    [
        (
            "@hook.kernels\ndef kernels():\n    yield {'op': 'attention'}",
            "hook kernels yielded {'op': 'attention'}; expected Kernel, got dict",
        ),
        (
            f"@hook.kernels\ndef kernels():\n    yield {RULE}",
            "expected Kernel, got MeshRule",
        ),
        (
            "@hook.kernels\ndef kernels():\n    pass",
            "hook kernels returned None; expected an iterable of Kernel",
        ),
        (
            f"@hook.kernels\ndef kernels():\n    return {KERNEL}",
            "expected an iterable of Kernel",
        ),
        (
            "@hook.kernals\ndef kernels():\n    yield",
            "there is no hook 'kernals'; did you mean 'kernels'?",
        ),
        (
            "import pluggy\n@pluggy.HookimplMarker('axcore')\ndef mesh_rule():\n    yield",
            "there is no hook 'mesh_rule'; did you mean 'mesh_rules'",
        ),
        (
            "@hook.kernels\ndef kernels(hardware=None):\n    yield",
            "hook kernels takes no arguments, but kernels has parameters 'hardware'",
        ),
        (
            "import pluggy\n@pluggy.HookimplMarker('axcore')\ndef kernels(depth=3):\n    yield",
            "hook kernels takes no arguments, but kernels has parameters 'depth'",
        ),
        (
            "def kernels():\n    yield",
            "axl_acme.plugin.kernels has the name of a hook and is not marked as one",
        ),
        (
            f"@hook.mesh_rules\ndef mesh_rules():\n    yield {RULE}\n    yield {RULE}",
            "plugin 'axl-acme' brings mesh rule 'acme-*' twice",
        ),
        (
            f"@hook.kernels\ndef kernels():\n    yield {KERNEL.replace('attention', 'atention')}",
            "kernel 'flash' is for op 'atention', which nobody declares; did you mean 'attention'",
        ),
        (
            f"@hook.kernels\ndef kernels():\n    yield {KERNEL.replace('200', '2e2')}",
            "Kernel.priority is 200.0; expected int, got float",
        ),
    ],
)
def test_plugin_that_registers_wrongly_fails_with_what_is_wrong(installed, source, body, trouble):
    installed.add("axl-acme", source(body))
    plugin = installed.host().plugin("axl-acme")
    assert plugin.state == "failed"
    assert trouble in plugin.trouble


def test_wrongly_marked_hook_is_reported_with_file_and_line(installed, source):
    installed.add("axl-acme", source("@hook.kernels\ndef kernels(depth=3):\n    yield"))
    assert f"{installed.root}/axl_acme/plugin.py:2" in str(
        installed.host().plugin("axl-acme").error
    )


def test_old_level_is_listed_without_being_imported(installed):
    installed.add("axl-old", "raise SystemExit('imported')", level=0)
    host = installed.host()
    plugin = host.plugin("axl-old")
    assert (plugin.state, plugin.import_time_s) == ("incompatible", None)
    assert plugin.trouble == "written for axcore.v0; this axcore speaks axcore.v1"
    with pytest.raises(PluginError, match="AXCORE_BLOCK=axl-old"):
        host.require_healthy()


def test_name_offered_by_two_distributions_is_refused_naming_both(installed):
    installed.add("axl-one", "raise SystemExit('imported')", plugin_name="axl-acme")
    installed.add("axl-two", "raise SystemExit('imported')", plugin_name="axl-acme", version="2.0")
    plugin = installed.host().plugin("axl-acme")
    assert plugin.state == "failed"
    assert plugin.trouble == (
        "two distributions bring a plugin named 'axl-acme': axl-one 1.0 and axl-two 2.0"
    )


def test_name_of_the_core_is_refused(installed):
    installed.add("axl-cuckoo", plugin_name="core")
    failed = [plugin for plugin in installed.host().plugins() if plugin.state == "failed"]
    assert [plugin.trouble for plugin in failed] == [
        "distribution axl-cuckoo names its plugin 'core', which is axcore's own"
    ]


def test_record_of_two_plugins_fails_both_and_says_which_to_block(installed, source):
    body = source(f"@hook.mesh_rules\ndef mesh_rules():\n    yield {RULE}")
    installed.add("axl-a", body)
    installed.add("axl-b", body)
    host = installed.host()
    for name in ("axl-a", "axl-b"):
        assert host.plugin(name).trouble == "mesh rule 'acme-*' is brought by axl-a and axl-b"
    assert "set AXCORE_BLOCK=axl-a or set AXCORE_BLOCK=axl-b" in str(host.plugin("axl-a").error)
    assert [rule.plugin for rule in host.records(MeshRule)] == ["core"]


def test_record_that_the_core_has_fails_the_plugin_alone(installed, source):
    op = 'Op(name="attention", fn=Ref("a:b"), summary="")'
    installed.add("axl-a", source(f"@hook.ops\ndef ops():\n    yield {op}"))
    host = installed.host()
    assert host.plugin("axl-a").trouble == "op 'attention' is brought by core and axl-a"
    assert host.plugin("core").state == "loaded"


def test_run_is_refused_naming_the_broken_and_the_variable_that_lets_it_start(installed):
    installed.add("axl-a", "1 / 0")
    installed.add("axl-b", "import no_such_package")
    installed.add("axl-c")
    with pytest.raises(PluginError) as refused:
        installed.host({"AXCORE_BLOCK": "axl-c"}).require_healthy()
    assert "plugin axl-a failed: ZeroDivisionError: division by zero" in refused.value.what
    assert "plugin axl-b failed: ModuleNotFoundError" in refused.value.what
    assert (refused.value.hint or "").endswith("AXCORE_BLOCK=axl-a,axl-b,axl-c")
    installed.host({"AXCORE_BLOCK": "axl-a,axl-b,axl-c"}).require_healthy()


def test_blocked_plugin_is_not_imported(installed):
    installed.add("axl-acme", "raise SystemExit('imported')")
    plugin = installed.host({"AXCORE_BLOCK": " axl-acme , "}).plugin("axl-acme")
    assert (plugin.state, plugin.reason) == ("blocked", "AXCORE_BLOCK names it")
    assert "axl_acme" not in sys.modules


def test_plugin_that_the_allow_list_leaves_out_is_not_imported(installed):
    installed.add("axl-acme", "raise SystemExit('imported')")
    installed.add("axl-good", RULES)
    host = installed.host({"AXCORE_PLUGINS": "axl-good"})
    assert host.plugin("axl-acme").reason == "AXCORE_PLUGINS does not name it"
    assert host.plugin("axl-good").state == "loaded"
    assert host.plugin("core").state == "loaded"
    host.require_healthy()


def test_allow_list_of_the_core_alone_keeps_all_others_out(installed):
    installed.add("axl-acme", "raise SystemExit('imported')")
    host = installed.host({"AXCORE_PLUGINS": "core"})
    assert host.plugin("axl-acme").state == "blocked"
    host.require_healthy()


@pytest.mark.parametrize("variable", ["AXCORE_PLUGINS", "AXCORE_BLOCK"])
def test_list_naming_what_is_not_installed_stops_runs(installed, variable):
    installed.add("axl-acme")
    host = installed.host({variable: "axl-acne"})
    with pytest.raises(PluginError, match=f"{variable} names 'axl-acne'.*did you mean 'axl-acme'"):
        host.require_healthy()


def test_core_cannot_be_blocked(installed):
    with pytest.raises(PluginError, match="AXCORE_BLOCK names 'core', which cannot be blocked"):
        installed.host({"AXCORE_BLOCK": "core"}).require_healthy()


def test_asking_for_a_plugin_that_is_not_there_says_what_is(installed):
    installed.add("axl-acme")
    with pytest.raises(PluginError, match="no plugin 'acme' is installed; did you mean 'axl-acme'"):
        installed.host().plugin("acme")


def test_fingerprint_tells_versions_apart_and_leaves_out_the_blocked(installed):
    installed.add("axl-acme", RULES)
    one = installed.host().fingerprint()
    installed.add("axl-idle", RULES)
    assert installed.host({"AXCORE_BLOCK": "axl-idle"}).fingerprint() == one
    assert installed.host().fingerprint() != one
    (installed.root / "axl_acme-1.0.dist-info/METADATA").write_text(
        "Name: axl-acme\nVersion: 1.1\n"
    )
    assert installed.host({"AXCORE_BLOCK": "axl-idle"}).fingerprint() != one
