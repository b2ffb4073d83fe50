"""`axcore ask`: asks a language model about pictures."""

import json
from pathlib import Path

import click

from axcore.errors import DataError


@click.command()
@click.argument("run")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--question", "-q", multiple=True, help="What is asked about each file.")
@click.option(
    "--held-out",
    is_flag=True,
    help="Ask what the run's data asks about pictures that it was not trained on, and report the "
    "share of answers that are exactly right.",
)
@click.option("--step", type=int, help="Checkpoint to use; by default the newest.")
@click.option("--trust-code", is_flag=True, help="Run code that came with the run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    run: str,
    files: tuple[Path, ...],
    question: tuple[str, ...],
    held_out: bool,
    step: int | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Ask RUN about the pictures in FILES.

    RUN is a run directory, or the folder of a pretrained checkpoint.

    \b
    axcore ask runs/digits-chat photo.png --question 'Which digit?'
    axcore ask runs/digits-chat --held-out
    """
    if held_out == bool(files) or bool(files) != bool(question):
        raise click.UsageError("name FILES and a --question, or --held-out alone")
    from axcore.evaluation import InputQuestion, InputQuestions
    from axcore.runs import open_model

    opened = open_model(run, step=step, trust_code=trust_code)
    with InputQuestions(opened) as asking:
        if held_out:
            right, total = asking.exact_match(opened.trainer.data.held_out())
            if not total:
                raise DataError(
                    "the run's data hold out no conversation",
                    where="data.validation_fraction",
                    hint="train with --set data.validation_fraction=0.1",
                )
            click.echo(
                json.dumps({"right": right, "questions": total, "exact_match": right / total})
                if as_json
                else f"{right} of {total} answers are exactly right, {right / total:.1%}"
            )
            return
        pairs = [(path, one) for path in files for one in question]
        contents = {path: path.read_bytes() for path in files}
        try:
            found = asking.answers([InputQuestion(contents[path], one) for path, one in pairs])
        except ValueError as error:
            names = ", ".join(map(str, files))
            raise DataError(f"a file is not a picture: {error}", where=names) from error
        for (path, one), answer in zip(pairs, found, strict=True):
            line = {"file": str(path), "question": one, "answer": answer}
            click.echo(json.dumps(line) if as_json else f"{path}: {one} {answer}")
