"""`axcore experiments`: what there is to train."""

import json
import sys
from typing import Any

import click

from axcore.cli import options
from axcore.cli.main import error_text
from axcore.errors import PluginError
from axcore.plugins import Experiment, plugin_host
from axcore.report.table import columns


@click.command()
@click.option("--sizes", is_flag=True, help="Also count every model's parameters.")
@options.as_json
def experiments(sizes: bool, as_json: bool) -> None:
    """List the experiments that `axcore train` knows."""
    records = sorted(plugin_host().records(Experiment), key=lambda record: record.name)
    broken: dict[str, Exception] = {}
    rows = [_row(record, broken, with_size=sizes) for record in records]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        head = ("NAME", "PLUGIN", *(("PARAMETERS",) if sizes else ()), "SUMMARY")
        click.echo(columns(head, [tuple(map(_shown, row.values())) for row in rows]))
    for name, error in broken.items():
        click.echo(f"\nexperiment {name!r} is broken: {error_text(error)}", err=True)
    if broken:
        sys.exit(PluginError.exit_code)


def _row(record: Experiment, broken: dict[str, Exception], *, with_size: bool) -> dict[str, Any]:
    size: dict[str, Any] = {}
    if with_size:
        try:
            size["parameters"] = _num_parameters(record)
        except Exception as error:  # the others are listed, and this one is shown below them
            size["parameters"] = None
            broken[record.name] = error
    return {"name": record.name, "plugin": record.plugin, **size, "summary": record.summary}


def _shown(value: str | int | None) -> str:
    if value is None:
        return "broken"
    return f"{value:,}" if isinstance(value, int) else value


def _num_parameters(record: Experiment) -> int:
    """Count a model's parameters by their descriptions; makes none of them."""
    from axcore.experiments.named import config_of
    from axcore.module import count_params

    return count_params(config_of(record).model.build().param_specs())
