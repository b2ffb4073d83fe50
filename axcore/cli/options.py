"""Options that several commands share, what a shell completes for them, and `axcore completion`."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from axcore.errors import AxcoreError, ConfigError
from axcore.whole_files import write_whole

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class OutputPath(click.Path):
    """A file, or folder, to write: what would fail in the end is refused before any work."""

    def __init__(self, *, is_folder: bool = False) -> None:
        super().__init__(file_okay=not is_folder, dir_okay=is_folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, where it or a folder above it can be written."""
        path: Path = Path(os.fsdecode(super().convert(value, param, ctx)))
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        if there != path and not there.is_dir():
            self.fail(f"{there} is a file, and no folder", param, ctx)
        if not os.access(there, os.W_OK):
            self.fail(f"{there} may not be written to", param, ctx)
        return path


def write_output(path: Path, text: str) -> None:
    """Write a file that a user asked for, whole or not at all; its folder is made.

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


def _complete_experiment(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Return experiments, with what they are."""
    from axcore.plugins import Experiment, plugin_host

    records = sorted(plugin_host().records(Experiment), key=lambda record: record.name)
    return _items(typed, ((one.name, one.summary) for one in records))


def _complete_target(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Return names of hardware."""
    from axcore.plugins import HardwareFamily, plugin_host

    hosts = [host for one in plugin_host().records(HardwareFamily) for host in one.hosts]
    return _items(typed, ((host.name, "") for host in hosts))


def complete_run(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Return run directories, of those in runs or below what is typed."""
    folders = {Path("runs"), Path(typed), Path(typed).parent}
    found = sorted({str(config.parent) for one in folders for config in one.glob("*/config.json")})
    return [*_items(typed, ((one, "") for one in found)), CompletionItem(typed, type="dir")]


def _complete_change(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Return named changes, with what they do."""
    from axcore.plugins import Modifier, plugin_host

    records = sorted(plugin_host().records(Modifier), key=lambda record: record.name)
    return _items(typed, ((one.name, one.summary) for one in records))


def _complete_override(context: Any, _: Any, typed: str) -> list[CompletionItem]:
    """Return paths of the experiment that the line names, each with an equals sign."""
    from axcore.config.render import fields_of
    from axcore.experiments.named import experiment

    # The option wants a value that is not there yet, so click has read no arguments.
    name = next(iter(context.args), None)
    found: list[tuple[str, str]] = []
    if name and "=" not in typed:
        with contextlib.suppress(AxcoreError):  # the command itself will say what is wrong
            found = [(f"{one.path}=", one.doc) for one in fields_of(experiment(name))]
    return _items(typed, found)


def _items(typed: str, known: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    return [CompletionItem(name, help=help) for name, help in known if name.startswith(typed)]


policies: Decorator = click.option(
    "--policy",
    "policies",
    metavar="NAME=VALUE",
    multiple=True,
    help="Settings of the supervisor; see docs/reliability.md. Repeatable.",
)
experiment: Decorator = click.argument("experiment", shell_complete=_complete_experiment)

run: Decorator = click.argument("run", shell_complete=complete_run)

overrides: Decorator = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Set a value of the config; PATH may contain * and **. Repeatable.",
    shell_complete=_complete_override,
)

target: Decorator = click.option(
    "--target",
    metavar="NAME",
    help="Hardware, such as cpu-8; by default this machine.",
    shell_complete=_complete_target,
)

trust_code: Decorator = click.option(
    "--trust-code", is_flag=True, help="Run code that came with the run, though it is not yours."
)

allow_unknown_fields: Decorator = click.option(
    "--allow-unknown-fields",
    is_flag=True,
    help="Ignore fields of a pretrained checkpoint's config.json that could change numbers.",
)

as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

modify: Decorator = click.option(
    "--modify",
    "changes",
    metavar="NAME[(FIELD=VALUE,...)]",
    multiple=True,
    help="Apply a modifier, layer variant, data source or tokenizer by name, before --set.",
    shell_complete=_complete_change,
)


def escape_control_characters(text: str) -> str:
    """Return text with control characters written out, but for line ends and tabs.

    A model may sample any byte, an escape sequence that rewrites the screen included.
    """
    return "".join(
        char if char in "\n\t" or char.isprintable() else ascii(char)[1:-1] for char in text
    )


_LINES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/axcore.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_LINES)))
def completion(shell: str) -> None:
    """Print a script that makes SHELL complete what is typed after `axcore`.

    For bash and zsh, put this line into ~/.bashrc or ~/.zshrc:

        eval "$(axcore completion bash)"
    """
    from axcore.cli.main import group

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(group, {}, "axcore", "_AXCORE_COMPLETE").source())
