"""`axcore completion`: what a shell needs to complete commands, experiments, targets and paths."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from axcore.errors import AxcoreError

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


def complete_experiment(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Returns experiments, with what they are."""
    from axcore.plugins import Experiment, plugin_host

    records = sorted(plugin_host().records(Experiment), key=lambda record: record.name)
    return _items(typed, ((one.name, one.summary) for one in records))


def complete_target(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Returns names of hardware."""
    from axcore.plugins import HardwareFamily, plugin_host

    hosts = [host for one in plugin_host().records(HardwareFamily) for host in one.hosts]
    return _items(typed, ((host.name, "") for host in hosts))


def complete_run(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Returns run directories, of those in runs or below what is typed."""
    folders = {Path("runs"), Path(typed), Path(typed).parent}
    found = sorted({str(config.parent) for one in folders for config in one.glob("*/config.json")})
    return [*_items(typed, ((one, "") for one in found)), CompletionItem(typed, type="dir")]


def complete_change(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Returns named changes, with what they do."""
    from axcore.plugins import Modifier, plugin_host

    records = sorted(plugin_host().records(Modifier), key=lambda record: record.name)
    return _items(typed, ((one.name, one.summary) for one in records))


def complete_override(context: Any, _: Any, typed: str) -> list[CompletionItem]:
    """Returns paths of the experiment that the line names, each with an equals sign."""
    from axcore.config.fields import fields_of
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
