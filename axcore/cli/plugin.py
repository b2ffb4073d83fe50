"""`axcore plugin`: write a new plugin, or check one."""

import click


@click.group()
def plugin() -> None:
    """Write a new plugin, or check one that is installed."""
