"""`axcore train`: run an experiment, or take it up where it was."""

import sys
from pathlib import Path
from typing import Any

import click

from axcore.cli import options
from axcore.cli.printable import printable
from axcore.cli.processes import join, place_of, several_processes
from axcore.cli.target import check_present, use_target
from axcore.plugins import plugin_host

SAMPLE_TOKENS = 200
INTERRUPTED = 130


@click.command()
@click.argument("experiment")
@click.option(
    "--dir", "directory", metavar="DIR", help="Run directory; by default runs/EXPERIMENT."
)
@options.modify
@options.overrides
@options.target
@several_processes
def train(
    experiment: str,
    directory: str | None,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str | None,
    **processes: Any,
) -> None:
    """Train EXPERIMENT, a name or a config file, or go on where it was stopped."""
    plugin_host().require_healthy()
    place = place_of(processes)
    wanted = use_target(target, num_processes=place.process_count if place else 1)
    join(place, processes)
    from axcore.cli.experiment import load_for_hardware
    from axcore.cli.progress import progress

    hardware = check_present(wanted)
    cfg, from_rule = load_for_hardware(experiment, overrides, changes=changes, hardware=hardware)
    trainer = cfg.build()
    trainer.hardware_changes = from_rule
    run = Path(directory or Path("runs") / Path(experiment).stem)
    speaks = place is None or place.process_index == 0
    result = trainer.run(run, [progress()] if speaks else [])
    if not result.is_complete:
        sys.exit(INTERRUPTED)
    if speaks:
        _report(trainer, result, run, is_alone=place is None)


def _report(trainer: Any, result: Any, run: Path, *, is_alone: bool) -> None:
    if result.heldout:
        click.echo(f"held-out loss {result.heldout['loss']:.4f} nats a token")
    if is_alone:
        _sample(trainer, result, run)
    else:
        click.echo(f"axcore generate {run}   draws a sample; a run of several processes draws none")


def _sample(trainer: Any, result: Any, run: Path) -> None:
    """Prints a sample of generated text, and keeps it in the run directory."""
    from axcore.cli.draw import draw

    if not hasattr(type(trainer.model), "logits"):
        click.echo(f"no sample: {type(trainer.model).__qualname__} has no entry `logits`")
        return
    (sample,) = draw(trainer, result.state.model, trainer.config.prompt, max_tokens=SAMPLE_TOKENS)
    text = sample.prompt + sample.text
    (run / "sample.txt").write_text(text, encoding="utf-8")
    click.echo(f"\nsample, going on from {sample.prompt!r}:\n\n{printable(text)}\n")
    click.echo(f"axcore generate {run} --prompt {trainer.config.prompt!r}   draws another")
