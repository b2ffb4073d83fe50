"""`axcore fault-test`: train with the faults of a plan, and report what happened."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from axcore.cli import options
from axcore.config import evolve, to_yaml
from axcore.errors import ConfigError
from axcore.experiments.named import read_config
from axcore.launch.job import experiment_label
from axcore.plugins import plugin_host
from axcore.resilience.event_log import read_events
from axcore.resilience.ledger import read_ledger

_FIELDS_OF_ALL = ("time", "event", "process", "key", "pids")


@click.command()
@options.experiment
@click.option("--faults", "plan", metavar="FILE", required=True, help="A fault plan, JSON or YAML.")
@click.option("--dir", "directory", metavar="DIR", help="By default runs/EXPERIMENT-fault-test.")
@click.option("-n", "--processes", default=1, show_default=True, help="All on this machine.")
@options.modify
@options.overrides
@options.target
def fault_test(
    experiment: str,
    plan: str,
    directory: str | None,
    processes: int,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    target: str | None,
) -> None:
    """Train EXPERIMENT under a supervisor with the faults of a plan, and report what happened.

    The exit code is that of the run.
    """
    plugin_host().require_healthy()
    run = Path(directory or f"runs/{experiment_label(experiment)}-fault-test")
    file = run.with_name(f"{run.name}.yaml")
    options.write_output(file, to_yaml(_with_plan(experiment, plan, changes, overrides)))
    words = ["launch", "local", str(file), "-n", str(processes), "--supervise", f"--dir={run}"]
    words += [f"--target={target}"] if target else []
    code = subprocess.run([sys.executable, "-m", "axcore", *words], check=False).returncode
    click.echo(f"\nwhat happened in {run}:\n")
    for line in _story(run):
        click.echo(f"  {line}")
    click.echo(f"\nthe run ended with exit code {code}")
    sys.exit(code)


def _with_plan(
    experiment: str, plan: str, changes: tuple[str, ...], overrides: tuple[str, ...]
) -> Any:
    from axcore.experiments.named import load_experiment
    from axcore.resilience.faults import FaultPlan

    faults = read_config(Path(plan))
    if not isinstance(faults, FaultPlan.Config):
        raise ConfigError(
            f"the file contains a {type(faults).__qualname__}; expected a FaultPlan.Config",
            where=plan,
            hint="begin it with `type: axcore.resilience.faults:FaultPlan.Config`",
        )
    cfg = load_experiment(experiment, overrides, changes=changes)
    return evolve(cfg, guards=(*cfg.guards, faults))


def _story(run: Path) -> Iterator[str]:
    logged = read_events(run)
    for event in logged.events:
        yield f"{_seconds_between(logged.events[0], event):8.2f} s  {_shown(event)}"
    yield from logged.damaged
    ledger = read_ledger(run)
    if ledger is not None:
        yield ledger.summary()


def _seconds_between(first: Mapping[str, Any], event: Mapping[str, Any]) -> float:
    times = [datetime.fromisoformat(one["time"]) for one in (first, event)]
    return (times[1] - times[0]).total_seconds()


def _shown(event: Mapping[str, Any]) -> str:
    process = event["process"]
    who = process if isinstance(process, str) else f"process {process}"
    rest = (f"{name}={value}" for name, value in event.items() if name not in _FIELDS_OF_ALL)
    return f"{who:<12}{event['event']:<20}{' '.join(rest)}".rstrip()
