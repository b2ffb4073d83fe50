"""Options that several commands share."""

from collections.abc import Callable
from typing import Any

import click

from axcore.cli import completion

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

experiment: Decorator = click.argument("experiment", shell_complete=completion.complete_experiment)

run: Decorator = click.argument("run", shell_complete=completion.complete_run)

overrides: Decorator = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Set a value of the config; PATH may hold * and **. Repeatable.",
    shell_complete=completion.complete_override,
)

target: Decorator = click.option(
    "--target",
    metavar="NAME",
    help="Hardware, as cpu-8; by default what is here.",
    shell_complete=completion.complete_target,
)

trust_code: Decorator = click.option(
    "--trust-code", is_flag=True, help="Run code that came with the run, though it is not yours."
)

allow_unknown_fields: Decorator = click.option(
    "--allow-unknown-fields",
    is_flag=True,
    help="Ignore fields of a published model's config.json that could change numbers.",
)

as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

modify: Decorator = click.option(
    "--modify",
    "changes",
    metavar="NAME[(FIELD=VALUE,...)]",
    multiple=True,
    help="Make a named change, before --set: a modifier, layer variant, data source or tokenizer.",
    shell_complete=completion.complete_change,
)
