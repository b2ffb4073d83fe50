"""`axcore experiments`: what there is to train."""

import json
from typing import Any

import click

from axcore.cli import options
from axcore.cli.table import columns
from axcore.plugins import Experiment, plugin_host


@click.command()
@click.option("--sizes", is_flag=True, help="Also count every model's parameters.")
@options.as_json
def experiments(sizes: bool, as_json: bool) -> None:
    """List the experiments that `axcore train` knows."""
    records = sorted(plugin_host().records(Experiment), key=lambda record: record.name)
    rows = [_row(record, with_size=sizes) for record in records]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    head = ("NAME", "PLUGIN", *(("PARAMETERS",) if sizes else ()), "SUMMARY")
    click.echo(columns(head, [tuple(map(_shown, row.values())) for row in rows]))


def _row(record: Experiment, *, with_size: bool) -> dict[str, Any]:
    size = {"parameters": _num_parameters(record)} if with_size else {}
    return {"name": record.name, "plugin": record.plugin, **size, "summary": record.summary}


def _shown(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _num_parameters(record: Experiment) -> int:
    """Counts a model's parameters by their descriptions; makes none of them."""
    from axcore.module import count_params

    return count_params(record.fn.resolve()().model.build().param_specs())
