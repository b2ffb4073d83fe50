"""`axcore chat`: talk to a model in the terminal."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from axcore.cli import options
from axcore.cli.loading_display import LoadingDisplay
from axcore.cli.options import escape_control_characters
from axcore.cli.target import use_target
from axcore.errors import AxcoreError, RequestError
from axcore.progress import heard_by
from axcore.resilience.compile_cache import use_compile_cache

if TYPE_CHECKING:
    from axcore.inference import AnyEngine, ChatSession
    from axcore.runs import OpenedModel

_MAX_LENGTH = 8192
"""Tokens of the longest conversation, where nothing says otherwise: memory for the keys and values
of a model at its full length is often more than a machine has."""

_HELP = """\
/clear       forget what was said
/help        show this
/quit        end; so does Ctrl-D
\"""          begin and end a message of several lines
Ctrl-C       stop an answer"""


@click.command()
@options.run
@click.option("--system", metavar="TEXT", help="What the conversation begins with.")
@click.option("--max-tokens", default=1024, show_default=True, help="Tokens of an answer at most.")
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    help="Tokens of the longest conversation; by default what the model was trained with, and "
    f"{_MAX_LENGTH} at most.",
)
@click.option("--temperature", default=0.8, show_default=True, help="0 takes the likeliest token.")
@click.option(
    "--top-p",
    default=1.0,
    show_default=True,
    help="Sample from the fewest likeliest tokens whose probabilities add up to this.",
)
@click.option("--top-k", type=int, help="Sample from this many likeliest tokens only.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples.")
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@click.option(
    "--chat-template",
    metavar="NAME|FILE",
    help="Chat template to use instead of the tokenizer's: a file, or a name such as qwq.",
)
@options.modify
@options.overrides
@options.target
@options.trust_code
@options.allow_unknown_fields
def chat(run: str, system: str | None, max_tokens: int, seed: int, **rest: Any) -> None:
    """Talk to the model of RUN, a run directory or the folder of a pretrained checkpoint.

    It answers with all that was said before. What it reasons is shown dimmed. Where input is not a
    terminal, each line is a message. --set changes the engine, as weights=int8, and --modify the
    model, as 'kv_cache(dtype=int8)'.
    """
    use_compile_cache()
    use_target(rest.pop("target"))
    from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template
    from axcore.inference import ChatSession, Sampling
    from axcore.runs import open_model

    sampling = Sampling(**{name: rest[name] for name in ("temperature", "top_p", "top_k")})
    sampling.check()
    with LoadingDisplay() as display, heard_by(display.hear):
        display.begin("loading", run)
        opened = open_model(
            run,
            step=rest["step"],
            trust_code=rest["trust_code"],
            changes=rest["changes"],
            on_host=True,
            allow_unknown_fields=rest["allow_unknown_fields"],
        )
        tokenizer = opened.tokenizer
        if rest["chat_template"] is not None:
            tokenizer = with_chat_template(
                tokenizer, rest["chat_template"], where="--chat-template"
            )
        tokenizer.known_chat_template  # noqa: B018 - refused before anything is compiled
        engine = _engine(opened, rest["max_length"], rest["overrides"], display)
    with engine:
        session = ChatSession(
            engine, tokenizer, system=system, sampling=sampling, max_tokens=max_tokens, seed=seed
        )
        step = "" if opened.step is None else f", step {opened.step}"
        if _is_terminal():
            click.echo(f"{opened.name}{step}: up to {engine.max_length} tokens; /help for help")
        for message in _messages(session):
            _answer(session, message)


def _engine(
    opened: "OpenedModel", length: int | None, overrides: tuple[str, ...], display: LoadingDisplay
) -> "AnyEngine":
    from axcore.config import apply_overrides, evolve
    from axcore.inference import EngineConfig
    from axcore.runs import engine_for

    # One conversation: a row, and few tokens a call, so that text comes as it is sampled.
    cfg = EngineConfig(max_num_seqs=1, num_decode_steps=4)
    cfg = evolve(cfg, max_length=length or min(opened.length, _MAX_LENGTH))
    engine, _ = engine_for(opened, apply_overrides(cfg, overrides))
    display.begin("compiling")
    # The first answer waits for the first programs alone.
    engine.warm_up(display.advance, when_all=_report_compilation)
    return engine


def _report_compilation(failure: Exception | None) -> None:
    if failure is not None:
        # Fewer programs are slower, and answer the same.
        click.echo(f"a program did not compile; others answer: {failure}", err=True)


def _messages(session: "ChatSession") -> Iterator[str]:
    """Yield what is typed, and do what commands say; ends at the end of input or `/quit`."""
    while True:
        try:
            text = _typed()
        except EOFError:
            return
        except KeyboardInterrupt:
            click.echo("\n/quit or Ctrl-D ends", err=True)
            continue
        command = text.strip()
        if command == "/quit":
            return
        if command == "/clear":
            session.clear()
            click.echo("forgotten", err=True)
        elif command == "/help":
            click.echo(_HELP, err=True)
        elif command.startswith("/") and " " not in command and "\n" not in command:
            # A typo of a command is not a question; what else begins so has more than a word.
            click.echo(f"there is no command {command}; /help lists them", err=True)
        elif command:
            yield text


def _typed() -> str:
    """Return a line, or several between lines of three quotes.

    Raises:
        EOFError: Nothing more comes.
    """
    is_terminal = _is_terminal()
    if is_terminal:
        import readline  # noqa: F401 - gives `input` its arrows and history
    line = input("> " if is_terminal else "")
    if line.strip() != '"""':
        return line
    lines: list[str] = []
    try:
        while (line := input(". " if is_terminal else "")).strip() != '"""':
            lines.append(line)
    except EOFError:
        if is_terminal or not lines:
            raise
    return "\n".join(lines)


def _answer(session: "ChatSession", message: str) -> None:
    """Print an answer as it is sampled; Ctrl-C stops it."""
    from axcore.data.chat.parsers.pieces import Reasoning

    try:
        for piece in session.ask(message):
            if isinstance(piece, Reasoning):
                if _is_terminal():
                    click.secho(escape_control_characters(piece.text), dim=True, nl=False)
            else:
                click.echo(escape_control_characters(str(piece)), nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        click.echo(" ...", nl=False)
    except RequestError as error:
        click.echo(str(error), err=True)
        return
    except AxcoreError:
        click.echo()  # the error begins on a line of its own
        raise
    click.echo()
    if session.is_cut:
        click.echo("the answer was cut: it had as many tokens as it may have", err=True)
    if session.num_dropped:
        click.echo(
            f"the first {session.num_dropped} messages were left out: the conversation is longer "
            "than the model reads",
            err=True,
        )


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
