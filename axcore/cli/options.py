"""Options that several commands share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from axcore.cli import completion
from axcore.errors import ConfigError
from axcore.whole_files import write_whole

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class OutputPath(click.Path):
    """A file, or folder, to write: what would fail in the end is refused before any work."""

    def __init__(self, *, is_folder: bool = False) -> None:
        super().__init__(file_okay=not is_folder, dir_okay=is_folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path, where it or a folder above it can be written."""
        path: Path = Path(os.fsdecode(super().convert(value, param, ctx)))
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        if there != path and not there.is_dir():
            self.fail(f"{there} is a file, and no folder", param, ctx)
        if not os.access(there, os.W_OK):
            self.fail(f"{there} may not be written to", param, ctx)
        return path


def write_output(path: Path, text: str) -> None:
    """Writes a file that a user asked for, whole or not at all; its folder is made.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            hint="name a file in a folder that you may write to",
        ) from error


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
