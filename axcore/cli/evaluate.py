"""`axcore evaluate`: what a model knows, measured by tasks; or its validation loss."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from axcore.cli import options, processes

if TYPE_CHECKING:
    from axcore.evaluation import TaskResult


@click.command()
@click.argument("model")
@click.option(
    "--tasks",
    multiple=True,
    metavar="NAME,...",
    help="Tasks: names, NAME:PATH of samples, FILE.yaml or FILE.py:FUNCTION. Repeatable.",
)
@click.option("--limit", type=click.IntRange(1), help="Only so many samples of each task.")
@click.option("--num-shots", type=click.IntRange(0), help="Solved examples before each question.")
@click.option("--output", type=options.OutputPath(is_folder=True), help="Folder for results.")
@click.option(
    "--restart", is_flag=True, help="Evaluate everything again, and use no stored answers."
)
@click.option("--rows", default=16, show_default=True, help="Answers to sample at once.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for an answer at most.")
@click.option("--step", type=int, help="Checkpoint of a run to use; by default the newest.")
@click.option(
    "--allow-unsandboxed-code",
    is_flag=True,
    help="Run programs that the model writes also where this machine cannot confine them.",
)
@click.option(
    "--html",
    "page",
    type=options.OutputPath(),
    help="Without --tasks: write a page of held-out rows, as pictures, and what the model answers.",
)
@click.option(
    "--shown", default=48, show_default=True, type=click.IntRange(1), help="Rows of that page."
)
@options.overrides
@options.trust_code
@options.allow_unknown_fields
@options.as_json
@processes.options
def evaluate(model: str, tasks: tuple[str, ...], as_json: bool, **rest: Any) -> None:
    """Evaluate MODEL, a run directory or the folder of a pretrained checkpoint.

    Without --tasks this is the loss on the run's own validation text. --set changes tasks, as
    arithmetic.samples.num=50; see docs/evaluation.md.
    """
    place = processes.place_of(rest)
    if rest["page"] is not None and (tasks or place is not None):
        raise click.UsageError("--html shows the run's own data: without --tasks, in one process")
    processes.join(place, rest)
    if not tasks:
        _print_validation_loss(model, rest, as_json=as_json)
        return
    from axcore.evaluation import check_tasks, directory_of, evaluate_tasks, find_tasks, identity_of
    from axcore.evaluation.engine_model import engine_model
    from axcore.runs import open_model

    found = find_tasks(tasks, _overrides(tasks, rest))
    check_tasks(found)
    how = {name: rest[name] for name in ("step", "trust_code", "allow_unknown_fields")}
    # Each process places its part of the weights, and has all of them only on its host.
    opened = open_model(model, on_host=place is not None, **how)
    run = None if opened.step is None else Path(model)
    directory = rest["output"] or directory_of(opened.name, run, opened.step)
    with engine_model(opened, max_num_seqs=rest["rows"]) as asked:

        def results() -> dict[str, Any]:
            found_of = evaluate_tasks(
                found,
                asked,
                identity_of(opened.name, opened.step, opened.state),
                directory,
                restarts=rest["restart"],
                timeout_s=rest["timeout"],
                report=(lambda _: None) if as_json else _print,
            )
            return {name: one.as_json() for name, one in found_of.items()}

        shown = asked.engine.together("evaluation", results)
        speaks = asked.engine.answers
    if speaks and as_json:
        click.echo(json.dumps({"step": opened.step, "directory": str(directory), "tasks": shown}))
    elif speaks:
        click.echo(f"kept in {directory}")
    if any(one["num_unanswered"] for one in shown.values()):
        raise SystemExit(1)


def _overrides(tasks: Sequence[str], rest: dict[str, Any]) -> tuple[str, ...]:
    """Return what the options set, before what --set does."""
    from axcore.evaluation import find_tasks

    numbers = {name: rest[name] for name in ("limit", "num_shots") if rest[name] is not None}
    every = find_tasks(tasks)
    general = [f"{task}.{key}={number}" for task in every for key, number in numbers.items()]
    if rest["allow_unsandboxed_code"]:
        key = "allow_unsandboxed_code"
        general += [f"{task}.{key}=true" for task, cfg in every.items() if hasattr(cfg, key)]
    return (*general, *rest["overrides"])


def _print(result: "TaskResult") -> None:
    shots = f", {result.num_shots} shots" if result.num_shots else ""
    kept = f", {result.num_kept} answered before" if result.num_kept else ""
    click.echo(f"{result.task}: {result.num_samples} samples{shots}{kept}, {result.seconds:.1f} s")
    for name, one in result.metrics.items():
        error = "" if one.standard_error is None else f" ± {one.standard_error:.4g}"
        click.echo(f"  {name:<24} {one.value:.4g}{error}")
    for number, what in (
        (result.num_bad, "malformed samples do not count"),
        (result.num_unanswered, "samples were not answered in time; run again to ask them"),
        (result.num_cut, "samples were longer than the model reads, and were cut"),
    ):
        if number:
            click.echo(f"  {number} {what}")


def _print_validation_loss(model: str, rest: dict[str, Any], *, as_json: bool) -> None:
    from axcore.distributed import is_process_zero
    from axcore.runs import load_run
    from axcore.trainer.callbacks.metrics import described

    saved = load_run(model, step=rest["step"], trust_code=rest["trust_code"])
    metrics, units = saved.evaluate(), saved.trainer.task.metric_units()
    first, *more = described(metrics, units)
    if (page := rest["page"]) is not None:
        from axcore.evaluation import shown_rows
        from axcore.report.rows_page import rows_page_html

        rows = shown_rows(saved, max_rows=rest["shown"], trust_code=rest["trust_code"])
        title = f"{saved.directory.resolve().name}, step {saved.step}"
        lines = [", ".join([f"validation {first}", *more])]
        options.write_output(page, rows_page_html(rows, title=title, lines=lines))
    if not is_process_zero():
        return
    if as_json:
        values = {"step": saved.step, "split": "validation", **metrics, "units": dict(units)}
        click.echo(json.dumps(values))
        return
    click.echo("\n  ".join([f"step {saved.step}: validation {first}", *more]))
    if page is not None:
        click.echo(f"rows are shown in {page}")
