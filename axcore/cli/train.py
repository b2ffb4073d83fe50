"""`axcore train`: train an experiment, or resume it."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from axcore._jax_compat import write_programs_whole
from axcore.cli import options, processes
from axcore.cli.interrupts import INTERRUPTED, exits_on_interrupt
from axcore.cli.options import escape_control_characters
from axcore.cli.target import check_present, use_target
from axcore.errors import ConfigError, ProcessError
from axcore.launch import ProcessInfo
from axcore.launch.job import default_run_directory, launch_of
from axcore.launch.process_info import process_flags
from axcore.plugins import Hardware, plugin_host
from axcore.resilience.compile_cache import kept_steps_folder, use_compile_cache
from axcore.resilience.heartbeat import Heartbeat, connect_heartbeat
from axcore.resilience.ledger import process_start
from axcore.resilience.standby_workers import StandbyControl

_SAMPLE_TOKENS = 200


@click.command()
@options.experiment
@click.option(
    "--dir", "directory", metavar="DIR", help="Run directory; by default runs/EXPERIMENT."
)
@click.option(
    "--from-step",
    metavar="N",
    type=click.IntRange(min=0),
    help="Resume from the checkpoint of step N, 0 for the start; later ones are quarantined.",
)
@click.option(
    "--launch-id",
    metavar="ID",
    default="",
    help="Only the first start with an ID goes back to --from-step; launchers set it.",
)
@click.option(
    "--profile",
    "profiled",
    metavar="FIRST:LAST",
    default="",
    help="Record these steps, for `axcore profile`; SIGUSR1 records the next three at any time.",
)
@click.option(
    "--reference-steps",
    metavar="N",
    type=click.IntRange(min=1),
    help="Do not train: compute N steps from the newest checkpoint with these kernels and with "
    "axcore's own, and report those that differ.",
)
@options.modify
@options.overrides
@options.target
@processes.options
@exits_on_interrupt()
def train(
    experiment: str,
    directory: str | None,
    from_step: int | None,
    launch_id: str,
    profiled: str,
    reference_steps: int | None,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str | None,
    **named: Any,
) -> None:
    """Train EXPERIMENT, a name or a config file, or resume it."""
    heartbeat = connect_heartbeat()
    use_compile_cache()
    plugin_host().require_healthy()
    place = processes.place_of(named)
    num_processes = place.process_count if place else 1
    # Before anything below imports jax, which reads these variables once.
    wanted = use_target(target, num_processes=num_processes, keeps_memory=True)
    turns = StandbyControl(heartbeat)
    turn = turns.wait(_import_all, on_leave=_end_waits)
    write_programs_whole()
    run = Path(directory or default_run_directory(experiment))
    while True:
        if turn is not None:  # a standby worker learns its place when its turn comes
            place = processes.place_of({**named, **process_flags(os.environ)})
        try:
            processes.join(place, named)
            load = partial(_load, experiment, overrides, changes, wanted)
            if reference_steps is not None:
                return _compare(load, run, reference_steps)
            back = {"from_step": from_step, "launch": launch_of(launch_id, os.environ)}
            return _train(load, run, place, heartbeat, back=back, began=turn, profiled=profiled)
        except ProcessError as error:
            if place is None or not turns.has_more or not processes.is_hosted():
                raise
            click.echo(f"process {place.process_index} leaves its attempt: {error.what}", err=True)
        turn = _stand_down(turns)


def _load(
    experiment: str, overrides: Any, changes: tuple[str, ...], wanted: Hardware | None
) -> Any:
    """Return the trainer, on the hardware at hand."""
    from axcore.experiments.named import load_resolved
    from axcore.trainer import KeptSteps, Trainer

    folder = kept_steps_folder()
    hardware = check_present(wanted)
    resolved = load_resolved(experiment, overrides, changes=changes, hardware=hardware)
    return Trainer(resolved, kept_steps=KeptSteps(folder) if folder else None)


def _train(
    load: Callable[[], Any],
    run: Path,
    place: ProcessInfo | None,
    heartbeat: Heartbeat | None,
    *,
    back: dict[str, Any],
    began: float | None,
    profiled: str,
) -> None:
    """Train once, to the end or to the loss of another process."""
    from axcore.aot.out_of_memory import StepMemoryRecorder, check_host_holds_state
    from axcore.distributed import naming_lost_processes
    from axcore.profiles import StepProfiler, parse_steps
    from axcore.resilience.goodput import Goodput
    from axcore.resilience.watchdog import ProgressReports, Watchdog
    from axcore.trainer import Observer
    from axcore.trainer.callbacks.progress import progress

    steps = parse_steps(profiled) if profiled else range(0)
    with _explaining_memory():
        trainer = load()
    speaks = place is None or place.process_index == 0
    goodput = Goodput(began or process_start())
    observers: list[Observer] = [progress(), goodput] if speaks else []
    if speaks:
        profiler = StepProfiler(lambda: trainer.compiler.compiled_step.as_text(), steps)
        profiler.record_on_signal()
        observers += [profiler, StepMemoryRecorder(trainer)]
    observers.append(Watchdog() if heartbeat is None else ProgressReports(heartbeat))
    check_host_holds_state(trainer)
    with naming_lost_processes(), _explaining_memory(trainer):
        # Quiet, as the display is one of the observers.
        result = trainer.run(run, observers, quiet=True, returns_when_stopped=True, **back)
    if speaks:
        click.echo(goodput.ledger.summary())
    if not result.is_complete:
        sys.exit(INTERRUPTED)
    if speaks:
        _report(trainer, result, run, is_alone=place is None)


def _compare(load: Callable[[], Any], run: Path, num_steps: int) -> None:
    """Compute steps by the run's kernels and by axcore's own, and say what differs."""
    from axcore.trainer.reference_steps import compare_steps

    with _explaining_memory():
        found = compare_steps(load(), run, num_steps=num_steps)
    found.check()
    click.echo(str(found))


@contextlib.contextmanager
def _explaining_memory(trainer: Any = None) -> Iterator[None]:
    """Explain what did not fit, where memory runs out."""
    try:
        yield
    except Exception as error:
        from axcore.aot.out_of_memory import explained, is_out_of_memory

        if not is_out_of_memory(error):
            raise
        raise explained(error, trainer) from error


def _end_waits() -> None:
    from axcore.distributed import end_waits

    end_waits()


def _stand_down(turns: StandbyControl) -> float:
    """Leave an attempt that lost a process; returns when the next one began."""
    from axcore.distributed import leave_processes

    leave_processes()
    return turns.stand_down()


def _import_all() -> None:
    """Import what every trainer needs."""
    import axcore.distributed
    import axcore.experiments.named
    import axcore.resilience.goodput
    import axcore.resilience.watchdog
    import axcore.trainer.callbacks.progress  # noqa: F401


def _report(trainer: Any, result: Any, run: Path, *, is_alone: bool) -> None:
    from axcore.runs.run import no_text_reason

    if result.validation:
        from axcore.trainer.callbacks.metrics import validation_line

        click.echo(validation_line(result.validation, result.units))
    reason = no_text_reason(trainer)
    # Their text alone would be continued without the picture that it is about.
    reads_inputs = getattr(trainer.model, "input_spec", None) is not None
    if reason is None and reads_inputs:
        reason = "prompts of this model have other inputs than text; ask it over HTTP"
    if reason is None and not is_alone:
        reason = "a run of several processes samples none"
    if reason is None:
        _sample(trainer, result, run)
    elif hasattr(trainer.model, "logits"):  # nobody expects text of other models
        click.echo(f"no sample: {reason}")
    _write_report(run)
    name = shlex.quote(str(run))
    commands = [f"axcore report {name} OTHER_RUN   compares two runs"]
    if no_text_reason(trainer) is None:
        commands.insert(0, f"axcore serve {name}   answers over HTTP")
        prompt = shlex.quote(trainer.config.prompt)
        if not reads_inputs:
            commands.insert(0, f"axcore generate {name} --prompt {prompt}   generates more text")
    click.echo("\n".join(["", "try:", *commands]))


def _write_report(run: Path) -> None:
    from axcore.cli.runs import write_report
    from axcore.report.page import REPORT_NAME

    try:
        write_report((run,), run / REPORT_NAME)
    except ConfigError as error:  # the run itself is whole
        click.echo(f"no report: {error}", err=True)
    else:
        click.echo(f"report: {run / REPORT_NAME}")


def _sample(trainer: Any, result: Any, run: Path) -> None:
    """Print a sample of generated text, and keep it in the run directory."""
    from axcore.runs.run import generate_text

    model = trainer.step.evaluated_model(result.state)
    (sample,) = generate_text(trainer, model, trainer.config.prompt, max_tokens=_SAMPLE_TOKENS)
    text = sample.prompt + sample.text
    (run / "sample.txt").write_text(text, encoding="utf-8")
    click.echo(f"\nsample, continuing {sample.prompt!r}:\n\n{escape_control_characters(text)}\n")
