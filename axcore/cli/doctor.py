"""`axcore doctor`: every plugin's checks of this machine, and how to fix what they find."""

import json
import sys
from collections.abc import Iterable, Iterator

import click

from axcore.errors import AxcoreError
from axcore.plugins import DoctorCheck, Finding, Fix, plugin_host
from axcore.plugins.time_limit import TakesTooLongError, within

_MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}

EXIT_ERRORS_FOUND = 1

TIMEOUT_S = 120.0
"""How long one check may take; devices of a large slice take a minute to start."""


@click.command()
@click.option("--fix", "fixes", is_flag=True, help="Fix what can be fixed here, and look again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(fixes: bool, as_json: bool) -> None:
    """Look at versions, plugins, variables, caches and devices, and say how to fix what is wrong.

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
        sys.exit(EXIT_ERRORS_FOUND)


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
