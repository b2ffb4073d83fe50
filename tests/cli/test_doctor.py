"""`axcore doctor`: unused hardware, and with --fix what it finds in caches and removes."""

import json
import os
import time

import pytest
from click.testing import CliRunner

from axcore import testing
from axcore._jax_compat import is_whole_program
from axcore.cli.doctor import caches, doctor, looked_at
from axcore.errors import PluginError
from axcore.plugins import DoctorCheck, Finding, Fix, Ref
from axcore.resilience.compile_cache import programs_folder

KEY = "ab" * 32


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of caches, and a function that writes an old file in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    monkeypatch.delenv("AXCORE_DATA_CACHE", raising=False)

    def write(name, content=b"", *, age_s=7200.0):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.utime(file, (time.time() - age_s,) * 2)
        return file

    return write


def check():
    return DoctorCheck(name="caches", fn=Ref("axcore.cli.doctor:caches"), summary="")


@pytest.fixture
def whole():
    """Bytes of a program as jax compresses it."""
    from jax._src import compilation_cache

    return compilation_cache.compress_executable(b"a program " * 1000)


def test_what_is_broken_is_removed_and_nothing_else(cache, whole):
    assert is_whole_program(whole)
    broken = [
        cache(f"programs/jit_step-{KEY}-cache", whole[: len(whole) // 2]),
        cache(f"programs/jit_step-{KEY}.123", whole),
        cache("axcore/reports/a.json.123.tmp", b"{"),
        cache("axcore/data/files/ab/text.txt.7.tmp", b"abc"),
    ]
    kept = [
        cache(f"programs/jit_other-{KEY}-cache", whole),
        cache(f"programs/jit_now-{KEY}-cache", whole[:9], age_s=0.0),
        cache("programs/my-cache", b"of somebody else"),
        cache("programs/notes.123", b"of somebody else"),
        cache("axcore/data/files/ab/shard.001", b"a copy"),
        cache("axcore/data/files/ab/now.txt.7.tmp", b"abc", age_s=0.0),
    ]
    before = [finding.text for finding in looked_at(check(), fixes=False)]
    assert before[0].startswith("1 compiled program cannot be read")
    assert before[1].startswith("3 drafts of killed processes, 0.0 MiB")
    assert all(file.exists() for file in broken)
    after = looked_at(check(), fixes=True)
    assert [finding.level for finding in after] == ["ok"] * 3
    assert after[0].text == f"fixed: remove 1 file in {programs_folder()}"
    assert after[2].text.startswith("2 compiled programs, 0 MiB, in ")
    assert not any(file.exists() for file in broken)
    assert all(file.exists() for file in kept)


def test_a_folder_that_its_owner_cannot_write_is_opened(cache, monkeypatch):
    folder = cache("axcore/reports/a.json").parent.parent
    folder.chmod(0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: bool(path.stat().st_mode & 0o200))
    found = looked_at(check(), fixes=False)[0]
    assert (found.level, found.hint) == ("error", f"chmod u+rwx {folder}")
    looked_at(check(), fixes=True)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_fix_that_fails_is_an_error_that_says_why(cache, monkeypatch, tmp_path):
    cache("axcore/reports/a.json.123.tmp")
    (finding, *_) = caches()
    (tmp_path / "axcore/reports/a.json.123.tmp").unlink()
    (tmp_path / "axcore/reports/a.json.123.tmp").mkdir()  # which unlink refuses
    monkeypatch.setattr("axcore.cli.doctor.findings", lambda check: [finding])
    failed = looked_at(check(), fixes=True)[0]
    assert failed.level == "error"
    assert failed.text.startswith("could not remove 1 file in ")


@pytest.mark.slow
def test_the_command_shows_fixes_as_text_and_as_json(cache):
    cache("axcore/reports/a.json.123.tmp")

    def shown(*options):
        return CliRunner().invoke(doctor, options).stdout

    assert "hint: axcore doctor --fix   to remove 1 file in " in shown()
    rows = [row for row in json.loads(shown("--json")) if row["check"] == "caches"]
    assert [row["fix"] and row["fix"][:13] for row in rows] == ["remove 1 file", None]
    assert "ok       caches: fixed: remove 1 file in " in shown("--fix")
    assert "--fix" not in shown()


def test_a_finding_says_how_to_fix_it():
    with pytest.raises(PluginError, match="a Finding of level 'error' says how to fix it"):
        Finding("error", "a")
    with pytest.raises(PluginError, match="expected a Fix"):
        Finding("error", "a", "b", "c")
    assert Finding("error", "a", fix=Fix("b", list)).hint == ""


PLUGIN = """
from axcore.plugins import Hardware, HardwareFamily, Ref, hook

@hook.hardware_families
def hardware_families():
    yield HardwareFamily(
        name="acme",
        hosts=(Hardware(family="acme", generation="x1", chips=4),),
        detect=Ref("axl_acme.chips:detect"),
        present=Ref("axl_acme.chips:present"),
        install="axl-acme[chips]",
        summary="",
    )
"""
CHIPS = """
def detect(platform, device_kind): return None
def present(environment): return True
"""


@pytest.fixture
def path_with_a_chip(tmp_path):
    """Returns a Python path on which a plugin sees a chip that JAX knows nothing of."""
    testing.make_dist(tmp_path / "site", "axl-acme", PLUGIN, files={"chips.py": CHIPS})
    return os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize("command", [("doctor",), ("train", "tiny", "--set=max_steps=0")])
@pytest.mark.quick_one_in(4)
def test_commands_warn_of_an_accelerator_that_jax_does_not_use(cli, path_with_a_chip, command):
    ran = cli(*command, PYTHONPATH=path_with_a_chip)
    shown = ran.stdout + ran.stderr
    assert "this machine has hardware of family 'acme', but JAX runs on cpu-" in shown
    assert "pip install 'axl-acme[chips]', or set JAX_PLATFORMS=cpu" in shown
