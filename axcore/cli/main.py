"""The command line's frame: `axcore`, its lazy subcommands, and how errors end it.

Subcommands are the `Command` records of all plugins, the core's included; help shows their
summaries and imports none of them. See `docs/exit-codes.md` for what `axcore` exits with.
"""

import atexit
import contextlib
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import click

from axcore import __version__
from axcore.cli.interrupts import INTERRUPTED, SAID
from axcore.cli.work_lines import WorkLines
from axcore.config import suggest_names
from axcore.errors import AxcoreError
from axcore.hardware.host_memory import keep_freed_memory
from axcore.plugins import Command, plugin_host
from axcore.progress import heard_by

_TRACEBACK = "AXCORE_TRACEBACK"

_OF_ENGINES = frozenset({"generate", "serve"})
"""Commands whose threads allocate at the same time, and would wait for a heap that they share."""


class LazyGroup(click.Group):
    """A group whose commands are records; each is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names, sorted."""
        return sorted(_records())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return None where there is none of that name.

        Raises:
            PluginError: The record's reference leads to no click command.
        """
        record = _records().get(cmd_name)
        if record is None:
            return None
        command = record.fn.resolve()
        if not isinstance(command, click.Command):
            raise record.wrong_field("fn", command, "a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; a name that is none is an error that says what is near."""
        if args and args[0] not in _records() and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; {suggest_names(args[0], _records())}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C ends it with one line, where it does not end in its own way."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(f"\n{SAID}", err=True)
            _leave(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write names and summaries, and which plugins could not add theirs."""
        records = _records()
        with formatter.section("Commands"):
            formatter.write_dl([(name, records[name].summary) for name in sorted(records)])
        broken = [plugin.name for plugin in plugin_host().plugins() if plugin.is_broken]
        if broken:
            formatter.write_paragraph()
            formatter.write_text(f"Broken plugins: {', '.join(broken)}; see `axcore plugins`.")


def _records() -> dict[str, Command]:
    return {record.name: record for record in plugin_host().records(Command)}


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="axcore")
@click.option("--traceback", is_flag=True, help=f"Show tracebacks of errors; or {_TRACEBACK}=1.")
def group(traceback: bool) -> None:
    """Train large deep learning models with JAX on any accelerator."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `axcore` with `arguments`, or those of the process, and exit.

    An `AxcoreError` ends it with one message and the error's own exit code. So does an error of the
    system about a file, with 1. Anything else that is raised is a fault of the program and is shown
    whole.
    """
    collect_seldom()
    given = sys.argv[1:] if arguments is None else arguments
    rest, wants_traceback = _without_traceback(given)
    if os.environ.get("JAX_PLATFORMS") == "cpu" and not _OF_ENGINES.intersection(rest[:1]):
        keep_freed_memory()  # before plugins are loaded, which happens in threads
    try:
        with _short_warnings(), WorkLines() as lines, heard_by(lines):
            group.main(args=rest, prog_name="axcore")
    except AxcoreError as error:
        if wants_traceback:
            traceback.print_exception(error)
        else:
            click.echo(error_text(error), err=True)
        _leave(error.exit_code)
    except OSError as error:
        if error.filename is None or wants_traceback:
            traceback.print_exc()
        else:
            click.echo(f"{error_text(error)}\n  hint:   --traceback shows where", err=True)
        _leave(1)
    except Exception as error:
        full = None if wants_traceback else _out_of_memory(error)
        if full is None:
            traceback.print_exc()
        else:
            click.echo(error_text(full), err=True)
        _leave(1)


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Show warnings of axcore without the line of its source that raises them."""
    before = warnings.formatwarning

    def shown(message: Any, category: Any, filename: str, lineno: int, line: Any = None) -> str:
        if category is UserWarning or category.__module__.startswith("axcore."):
            return f"warning: {message}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = before


def collect_seldom() -> None:
    """Has Python look for cycles less often in this process, and not when it ends.

    Importing and tracing make many objects that live on: looking through them as often as Python
    does by default takes a tenth of the time, and once more at the end a quarter second.
    """
    gc.set_threshold(20_000, 50, 100)
    atexit.register(gc.freeze)


def _out_of_memory(error: Exception) -> Exception | None:
    """Return what explains that memory is full; None where something else went wrong."""
    if not isinstance(error, MemoryError) and "jax" not in sys.modules:
        return None
    from axcore.aot.out_of_memory import explained_outside_training, is_out_of_memory

    return explained_outside_training(error) if is_out_of_memory(error) else None


def _leave(exit_code: int) -> NoReturn:
    """Exit; one of several processes does so at once, as the others would wait for it."""
    processes = sys.modules.get("axcore.distributed.processes")
    if processes is not None:
        processes.exit_process(exit_code)
    sys.exit(exit_code)


def error_text(error: Exception) -> str:
    """Return an error as it is shown: its class, its message, and the notes it gained.

    What jax notes on how it shortened a traceback is left out, since none is shown.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("-----")]
    return "\n".join([f"{type(error).__name__}: {error}", *(f"  {note}" for note in notes)])


def _without_traceback(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take `--traceback` out of any position, so that it can be added to any command."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    ours, rest = list(arguments[:end]), list(arguments[end:])
    wanted = "--traceback" in ours or os.environ.get(_TRACEBACK, "") not in ("", "0")
    return [one for one in ours if one != "--traceback"] + rest, wanted


if __name__ == "__main__":
    main()
