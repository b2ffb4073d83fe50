"""`axcore chat-template`: what a chat template can be used for."""

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from axcore.cli import options
from axcore.config.json_files import parse_json
from axcore.errors import DataError

if TYPE_CHECKING:
    from axcore.data import Tokenizer
    from axcore.data.chat.drivable import TurnKind


@click.group(name="chat-template")
def chat_template() -> None:
    """Check chat templates."""


@chat_template.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--chat-template", "template", help="Another template: a file, or a name as qwq.")
@click.option(
    "--turns",
    type=click.Choice(("user", "tool")),
    multiple=True,
    help="Whose messages come between two answers; by default both are tried.",
)
@click.option(
    "--value",
    "values",
    metavar="NAME=VALUE",
    multiple=True,
    help="What else the template reads, such as enable_thinking=false. Repeatable.",
)
@options.as_json
def check(
    model: Path,
    template: str | None,
    turns: tuple[str, ...],
    values: tuple[str, ...],
    as_json: bool,
) -> None:
    """Prove that the template of MODEL can be driven in tokens, or name what it changes.

    MODEL is a run, the folder of a pretrained checkpoint, or a template's file in such a folder. A
    template is drivable where it only appends: what asked for an answer and the answer stay as they
    were when others have spoken. Conversations of several turns with tools need that.
    """
    from axcore.data.chat.drivable import FOLLOW_UPS, try_turns

    tokenizer = _tokenizer(model, template)
    follow_ups = [one for one in FOLLOW_UPS if one in turns or not turns]
    tried = try_turns(tokenizer, follow_ups=follow_ups, values=dict(map(_name_and_value, values)))
    where = tokenizer.known_chat_template.where
    if as_json:
        found = [{**attrs.asdict(one), "result": one.result} for one in tried]
        click.echo(json.dumps({"template": where, "kinds": found}, indent=2))
    else:
        click.echo(f"{where}:")
        for kind in tried:
            click.echo(options.escape_control_characters("\n".join(_lines(kind))))
    wrong = [one for one in tried if one.result == "not drivable"]
    if wrong or not any(one.is_drivable for one in tried):
        raise DataError(
            "the chat template cannot be driven in tokens with "
            + ", nor with ".join(one.describe() for one in wrong or tried),
            where=where,
            hint="use a template that only appends: --chat-template FILE tries one",
        )


def _tokenizer(model: Path, template: str | None) -> "Tokenizer":
    from axcore.data import tokenizer_in
    from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template

    folder = model
    if model.is_file():
        folder, template = model.parent, template or str(model)
    found: Tokenizer
    if (folder / "tokenizer.json").is_file():
        found = tokenizer_in(folder).build()
    elif model.is_file():
        raise DataError(
            f"there is no tokenizer.json next to {model.name}: whether a template can be driven "
            "depends on the tokens, too",
            where=str(model),
            hint=f"axcore chat-template check MODEL_FOLDER --chat-template {model}",
        )
    else:
        from axcore.runs import load_run

        data: Any = load_run(folder).opened_config.data
        found = data.tokenizer.build()
    return found if template is None else with_chat_template(found, template, where="the template")


def _name_and_value(text: str) -> tuple[str, object]:
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--value")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value


def _lines(kind: "TurnKind") -> list[str]:
    """Return what came of a kind of conversation, and of each that differs."""
    lines = [f"  {kind.describe():<22} {kind.result}"]
    for _, both in groupby(kind.cases, lambda one: one.thinking):
        plain, system = both
        for one in (plain,) if plain.result == system.result else (plain, system):
            name = {"": "answers", "field": "reasoning_content", "content": "<think> in content"}
            what = name[one.thinking] + (", system" if one.has_system else "")
            problem = f": {one.problem}" if one.problem else ""
            lines.append(f"    {what:<20} {one.result}{problem}")
    return lines
