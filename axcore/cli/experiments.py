"""`axcore experiments`: what there is to train."""

import json

import click

from axcore.cli import options
from axcore.cli.table import columns
from axcore.plugins import Experiment, plugin_host


@click.command()
@options.as_json
def experiments(as_json: bool) -> None:
    """List the experiments that `axcore train` knows."""
    records = sorted(plugin_host().records(Experiment), key=lambda record: record.name)
    if as_json:
        rows = [{"name": one.name, "plugin": one.plugin, "summary": one.summary} for one in records]
        click.echo(json.dumps(rows, indent=2))
        return
    table = [(one.name, one.plugin, one.summary) for one in records]
    click.echo(columns(("NAME", "PLUGIN", "SUMMARY"), table))
