"""`axcore plugins`: what is installed, what became of it, what it brought."""

import json
import traceback
from typing import Any

import click

from axcore.plugins import Plugin, plugin_host
from axcore.report.table import columns


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Show every record, and errors in full.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(verbose: bool, as_json: bool) -> None:
    """List plugins, their state, and what is wrong with those that are broken."""
    host = plugin_host()
    if as_json:
        click.echo(json.dumps([described(plugin) for plugin in host.plugins()], indent=2))
    else:
        click.echo(_listing(host.plugins()))
        for plugin in host.plugins():
            if text := _details(plugin, verbose=verbose):
                click.echo(f"\n{text}")
    if host.problem is not None:
        raise host.problem


def described(plugin: Plugin) -> dict[str, Any]:
    """Returns what `--json` prints of a plugin."""
    return {
        "name": plugin.name,
        "distribution": plugin.candidate.distribution,
        "version": plugin.candidate.version,
        "level": plugin.candidate.level,
        "module": plugin.candidate.module,
        "state": plugin.state,
        "import_time_s": plugin.import_time_s,
        "hooks": list(plugin.hooks),
        "records": [{"kind": record.kind, "key": record.key} for record in plugin.records],
        "error": plugin.trouble or None,
    }


def _listing(found: tuple[Plugin, ...]) -> str:
    header = ("NAME", "DISTRIBUTION", "VERSION", "LEVEL", "STATE", "IMPORT", "HOOKS")
    return columns(header, [_row(plugin) for plugin in found])


def _row(plugin: Plugin) -> tuple[str, ...]:
    took = plugin.import_time_s
    return (
        plugin.name,
        plugin.candidate.distribution,
        plugin.candidate.version,
        f"v{plugin.candidate.level}",
        plugin.state,
        "-" if took is None else f"{took * 1e3:.1f} ms",
        ", ".join(plugin.hooks) or "-",
    )


def _details(plugin: Plugin, *, verbose: bool) -> str:
    lines = []
    if plugin.trouble:
        lines += [f"{plugin.name} {plugin.state}: {plugin.trouble}"]
        lines += [f"  {line}" for line in str(plugin.error or "").splitlines()[1:]]
    elif verbose:
        lines += [f"{plugin.name}:"]
    if verbose:
        lines += [f"  {record.kind}: {record.key}" for record in plugin.records]
        if plugin.error is not None:
            lines += ["", *"".join(traceback.format_exception(plugin.error)).splitlines()]
    return "\n".join(lines)
