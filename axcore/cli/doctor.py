"""`axcore doctor`: every plugin's checks of this machine, and how to fix what they find."""

import json
import sys
from collections.abc import Iterable, Iterator

import click

from axcore.errors import AxcoreError
from axcore.plugins import DoctorCheck, Finding, plugin_host

_MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}

EXIT_ERRORS_FOUND = 1


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Look at versions, plugins, variables and devices, and say how to fix what is wrong."""
    found = [
        (check, finding)
        for check in plugin_host().records(DoctorCheck)
        for finding in findings(check)
    ]
    if as_json:
        click.echo(json.dumps([_described(check, finding) for check, finding in found], indent=2))
    else:
        for check, finding in found:
            click.echo(_shown(check, finding))
    if any(finding.level == "error" for _, finding in found):
        sys.exit(EXIT_ERRORS_FOUND)


def findings(check: DoctorCheck) -> Iterator[Finding]:
    """Yields what a check finds; a check that itself fails is found as an error."""
    try:
        for finding in check.call("fn", returns=Iterable, expected="an iterable of Finding"):
            if not isinstance(finding, Finding):
                raise check.wrong_return("fn", finding, "an iterable of Finding")
            yield finding
    except Exception as error:
        yield Finding(
            "error",
            f"the check itself failed: {_told(error)}",
            f"report this to the authors of {check.plugin}, or set AXCORE_BLOCK={check.plugin}",
        )


def _told(error: Exception) -> str:
    return error.what if isinstance(error, AxcoreError) else f"{type(error).__name__}: {error}"


def _shown(check: DoctorCheck, finding: Finding) -> str:
    name = check.name if check.plugin == "core" else f"{check.plugin}: {check.name}"
    line = f"{_MARKS[finding.level]}  {name}: {finding.text}"
    return f"{line}\n         hint: {finding.hint}" if finding.hint else line


def _described(check: DoctorCheck, finding: Finding) -> dict[str, str]:
    return {
        "check": check.name,
        "plugin": check.plugin,
        "level": finding.level,
        "text": finding.text,
        "hint": finding.hint,
    }
