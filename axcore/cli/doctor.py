"""`axcore doctor`: checks of the installation by every plugin, the core's own, and their fixes."""

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from axcore.cli.target import unused_hardware
from axcore.config.suggest import did_you_mean
from axcore.errors import AxcoreError
from axcore.hardware.device_start import start_devices
from axcore.launch import find_process_info
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID, process_flags
from axcore.plugins import DoctorCheck, Finding, Fix, Hardware, plugin_host
from axcore.plugins.flags import present_family
from axcore.plugins.loading import TIMEOUT as PLUGIN_TIMEOUT
from axcore.plugins.time_limit import CALLBACK_TIMEOUT, TakesTooLongError, within
from axcore.resilience.compile_cache import cache_folder, programs_folder
from axcore.sandbox import INSTALL_HINT, MECHANISMS, why_not

_MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}

_EXIT_ERRORS_FOUND = 1

TIMEOUT_S = 120.0
"""How long one check may take; devices of a large slice take a minute to start."""


@click.command()
@click.option("--fix", "fixes", is_flag=True, help="Fix what can be fixed here, and look again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(fixes: bool, as_json: bool) -> None:
    """Look at versions, plugins, variables, caches and devices, and show how to fix what is wrong.

    --fix removes or changes nothing but what axcore can make again.
    """
    checks = plugin_host().records(DoctorCheck)
    found = [(check, finding) for check in checks for finding in looked_at(check, fixes=fixes)]
    if as_json:
        click.echo(json.dumps([_described(check, finding) for check, finding in found], indent=2))
    else:
        for check, finding in found:
            click.echo(_shown(check, finding))
    if any(finding.level == "error" for _, finding in found):
        sys.exit(_EXIT_ERRORS_FOUND)


def looked_at(check: DoctorCheck, *, fixes: bool) -> list[Finding]:
    """Return what a check finds, after what it finds was fixed where that is wanted."""
    found = list(findings(check))
    wanted = [one.fix for one in found if fixes and one.fix is not None]
    if not wanted:
        return found
    return [*map(_applied, wanted), *findings(check)]


def _applied(fix: Fix) -> Finding:
    try:
        fix.apply()
    except OSError as error:
        return Finding("error", f"could not {fix.text}: {error}", "do it by hand")
    return Finding("ok", f"fixed: {fix.text}")


def findings(check: DoctorCheck) -> Iterator[Finding]:
    """Yield what a check finds; a check that itself fails is found as an error."""
    try:
        yield from within(TIMEOUT_S, lambda: list(_checked(check)), package=check.plugin)
    except TakesTooLongError as place:
        yield Finding(
            "error",
            f"the check has not ended after {TIMEOUT_S:g} s; it is at {place}",
            f"report this to the authors of {check.plugin}, or set AXCORE_BLOCK={check.plugin}",
        )
    except Exception as error:
        yield Finding(
            "error",
            f"the check itself failed: {_told(error)}",
            f"report this to the authors of {check.plugin}, or set AXCORE_BLOCK={check.plugin}",
        )


def _checked(check: DoctorCheck) -> Iterator[Finding]:
    for finding in check.call("fn", returns=Iterable, expected="an iterable of Finding"):
        if not isinstance(finding, Finding):
            raise check.wrong_return("fn", finding, "an iterable of Finding")
        yield finding


def _told(error: Exception) -> str:
    return error.what if isinstance(error, AxcoreError) else f"{type(error).__name__}: {error}"


def _shown(check: DoctorCheck, finding: Finding) -> str:
    name = check.name if check.plugin == "core" else f"{check.plugin}: {check.name}"
    line = f"{_MARKS[finding.level]}  {name}: {finding.text}"
    hints = [finding.hint] if finding.hint else []
    if finding.fix is not None:
        hints.append(f"axcore doctor --fix   to {finding.fix.text}")
    return "\n         ".join([line, *(f"hint: {hint}" for hint in hints)])


def _described(check: DoctorCheck, finding: Finding) -> dict[str, str | None]:
    return {
        "check": check.name,
        "plugin": check.plugin,
        "level": finding.level,
        "text": finding.text,
        "hint": finding.hint,
        "fix": None if finding.fix is None else finding.fix.text,
    }


_OLDEST_PYTHON = (3, 11)
_OLDEST_JAX = (0, 10)
_FIRST_UNTRIED_JAX = (0, 13)

OWN_VARIABLES = (
    "AXCORE_BLOCK",
    CALLBACK_TIMEOUT,
    COORDINATOR,
    NUM_PROCESSES,
    "AXCORE_PLUGINS",
    PLUGIN_TIMEOUT,
    PROCESS_ID,
    "AXCORE_TRACEBACK",
)
_OF_JAX_ALONE = {
    "JAX_COORDINATOR_ADDRESS": COORDINATOR,
    "JAX_NUM_PROCESSES": NUM_PROCESSES,
    "JAX_PROCESS_ID": PROCESS_ID,
}
"""Variables by which jax joins processes where nobody else does, and what axcore reads instead."""

_OTHER_VARIABLES = (
    *_OF_JAX_ALONE,
    "JAX_LOCAL_DEVICE_IDS",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)


def versions() -> Iterator[Finding]:
    """Python and jax are ones that axcore runs on."""
    python = platform.python_version()
    if sys.version_info[:2] < _OLDEST_PYTHON:
        yield Finding("error", f"Python is {python}", "install Python 3.11 or newer")
    else:
        yield Finding("ok", f"Python {python} on {platform.system()} {platform.machine()}")
    yield jax_finding(_installed("jax"), _installed("jaxlib"))


def jax_finding(jax_version: str, jaxlib_version: str) -> Finding:
    """Return what there is to say about these versions of jax and jaxlib."""
    hint = "pip install 'jax>=0.10,<0.13'"
    numbers = tuple(int(part) for part in re.findall(r"\d+", jax_version)[:2])
    if numbers < _OLDEST_JAX:
        return Finding("error", f"jax is {jax_version}; axcore wants 0.10 or newer", hint)
    if numbers >= _FIRST_UNTRIED_JAX:
        return Finding("warning", f"jax is {jax_version}, newer than axcore was tried with", hint)
    if jaxlib_version.split(".")[:2] != jax_version.split(".")[:2]:
        return Finding("error", f"jax is {jax_version} and jaxlib {jaxlib_version}", hint)
    return Finding("ok", f"jax {jax_version}, jaxlib {jaxlib_version}")


def plugins() -> Iterator[Finding]:
    """Every plugin that is installed loads."""
    host = plugin_host()
    if host.problem is not None:
        yield Finding("error", host.problem.what, host.problem.hint or "correct the variable")
    for plugin in host.plugins():
        if plugin.is_broken:
            yield Finding(
                "error",
                f"{plugin.name} {plugin.candidate.version} {plugin.state}: {plugin.trouble}",
                f"repair or uninstall {plugin.candidate.distribution}, "
                f"or set AXCORE_BLOCK={plugin.name}",
            )
    loaded = [plugin.name for plugin in host.plugins() if plugin.state == "loaded"]
    yield Finding("ok", f"loaded {', '.join(loaded)}; fingerprint {host.fingerprint()}")


def environment() -> Iterator[Finding]:
    """Variables that JAX, XLA and axcore read say what they seem to."""
    import jax  # not above: `axcore doctor --help` need not wait for it

    known = [name.upper() for name in jax.config.values] + [*OWN_VARIABLES, *_OTHER_VARIABLES]
    found = list(environment_findings(dict(os.environ), known))
    yield from found or [Finding("ok", "no variable that would be ignored")]


def environment_findings(variables: dict[str, str], known: list[str]) -> Iterator[Finding]:
    """Yield what is wrong with `variables`, where programs read those `known`."""
    for name in sorted(variables):
        near = did_you_mean(name, known)
        if name.startswith(("JAX_", "XLA_", "AXCORE_")) and name not in known and near:
            yield Finding("warning", f"{name} is set and nothing reads it; {near}", f"unset {name}")
    for flag in variables.get("XLA_FLAGS", "").split():
        if not flag.startswith("--"):
            yield Finding("warning", f"XLA_FLAGS contains {flag!r}", "write it as --name=value")


def processes() -> Iterator[Finding]:
    """This process has the index that its run expects."""
    variables = dict(os.environ)
    yield from process_findings(variables)
    for name, ours in _OF_JAX_ALONE.items():
        if name in variables:
            yield Finding("warning", f"{name} is set, which axcore does not read", f"set {ours}")


def process_findings(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what `variables` say about a process's index."""
    try:
        place = find_process_info(process_flags(variables), variables)
    except AxcoreError as error:
        yield Finding("error", error.what, error.hint or "correct the variable")
        return
    if place is None:
        yield Finding("ok", "a run of one process, as far as variables say")
    else:
        where = f"process {place.process_index} of {place.process_count}, says {place.source}"
        yield Finding("ok", f"{where}; process 0 is at {place.coordinator}")


def devices() -> Iterator[Finding]:
    """JAX starts, and a plugin knows its devices."""
    complaints: list[str] = []
    try:
        is_present = present_family() is not None
        found = start_devices(is_present=is_present, unused=complaints.append)
    except RuntimeError as error:
        text = str(error).splitlines()[0]
        yield Finding("error", f"JAX does not start: {text}", "see JAX_PLATFORMS and the driver")
        return
    for text in complaints:
        lines = (f"  {line}" for line in text.strip().splitlines())
        what = "software for accelerators is installed and found none; it said"
        yield Finding("ok", "\n".join((what, *lines)))
    hardware = Hardware.detect(found)
    if (unused := unused_hardware(hardware)) is not None:
        yield unused
    if hardware.is_known:
        yield Finding("ok", f"this machine is {hardware.name}")
    else:
        yield Finding(
            "warning",
            f"no plugin knows device kind {found[0].device_kind!r} ({hardware.name}): "
            "no mesh rule, no MFU, portable kernels only",
            f"install the axcore plugin for {hardware.family}",
        )


def sandbox() -> Iterator[Finding]:
    """This machine can confine programs that a model wrote; each way is tried."""
    reasons = {name: why_not(name) for name in MECHANISMS}
    works = [name for name, reason in reasons.items() if reason is None]
    broken = [f"{name} does not work: {why}" for name, why in reasons.items() if why is not None]
    if works:
        text = "; ".join([f"evaluated programs run under {works[0]}", *broken])
        yield Finding("ok", text + (f"; {', '.join(works[1:])} would do" if works[1:] else ""))
        return
    yield Finding(
        "warning", f"evaluated programs cannot be confined: {'; '.join(broken)}", INSTALL_HINT
    )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "0 (missing)"


_PROGRAM = re.compile(r"-[0-9a-f]{64}-cache$")
_DRAFT_OF_PROGRAM = re.compile(r"-[0-9a-f]{64}\.\d+$")
_DRAFT = re.compile(r"\.\d+\.tmp$")
"""What the names end with of a program, a draft of one, and a draft of another file."""

_UNTOUCHED_S = 3600.0
"""A file that nobody wrote to for so long is not being written."""


def caches() -> Iterator[Finding]:
    """The folders can be written, every program can be read, and no draft was left behind."""
    programs = programs_folder()
    from axcore.data.cache import cache_folder as data_folder

    folders = [cache_folder(), programs, data_folder()]
    found = [
        *(_unwritable(folder) for folder in folders if folder.is_dir()),
        _broken_programs(programs),
        _left_drafts([cache_folder(), data_folder()], programs),
    ]
    yield from filter(None, found)
    sizes = [_size(file) for file in _named(programs, _PROGRAM)]
    text = f"{len(sizes)} compiled programs, {sum(sizes) / 2**20:.0f} MiB, in {programs}"
    yield Finding("ok", text)


def _unwritable(folder: Path) -> Finding | None:
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return None
    is_own = folder.stat().st_uid == os.getuid()
    return Finding(
        "error",
        f"{folder} cannot be read and written",
        f"chmod u+rwx {folder}" if is_own else f"chown -R {os.getuid()} {folder}",
        Fix(f"let its owner read and write {folder}", lambda: _open_up(folder)) if is_own else None,
    )


def _open_up(folder: Path) -> None:
    folder.chmod(folder.stat().st_mode | 0o700)


def _broken_programs(folder: Path) -> Finding | None:
    files = [file for file in _named(folder, _PROGRAM) if _is_untouched(file) and _is_broken(file)]
    if not files:
        return None
    text = f"{_count(files, 'compiled program')} cannot be read and will be compiled at each start"
    return Finding("warning", f"{text}: {files[0]}", fix=_removal(files))


def _is_broken(file: Path) -> bool:
    from axcore._jax_compat import is_whole_program

    try:
        return not is_whole_program(file.read_bytes())
    except FileNotFoundError:  # another run removes files, too
        return False


def _left_drafts(folders: Sequence[Path], programs: Path) -> Finding | None:
    found = {file for folder in folders for file in _named(folder, _DRAFT, glob="**/*")}
    found.update(_named(programs, _DRAFT_OF_PROGRAM))
    files = sorted(filter(_is_untouched, found))
    if not files:
        return None
    size = sum(map(_size, files)) / 2**20
    text = f"{_count(files, 'draft')} of killed processes, {size:.1f} MiB: {files[0]}"
    return Finding("warning", text, fix=_removal(files))


def _named(folder: Path, end: re.Pattern[str], glob: str = "*") -> Iterator[Path]:
    """Yield the files of a folder whose names end so."""
    for file in folder.glob(glob):
        if end.search(file.name) and file.is_file():
            yield file


def _is_untouched(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime > _UNTOUCHED_S
    except FileNotFoundError:
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _removal(files: Sequence[Path]) -> Fix:
    def remove() -> None:
        for file in files:
            file.unlink(missing_ok=True)

    return Fix(f"remove {_count(files, 'file')} in {files[0].parent}", remove)


def _count(files: Sequence[Path], what: str) -> str:
    return f"{len(files)} {what}{'' if len(files) == 1 else 's'}"
