"""`--coordinator` and its kin: a command as one of several processes of a run."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from axcore.launch import ProcessInfo, find_process_info
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID
from axcore.resilience.supervisor import BY_SUPERVISOR, COORDINATION_VARIABLE

_OPTIONS = (
    click.option(
        "--coordinator",
        envvar=COORDINATOR,
        metavar="HOST:PORT",
        help="Process 0 of a run of several; engines say it themselves.",
    ),
    click.option(
        "--num-processes", "process_count", type=int, envvar=NUM_PROCESSES, help="Processes in all."
    ),
    click.option(
        "--process-id", "process_index", type=int, envvar=PROCESS_ID, help="This one, from 0."
    ),
    click.option(
        "--join-timeout",
        "join_s",
        default=300.0,
        show_default=True,
        help="Seconds to wait for all processes at the start.",
    ),
    click.option(
        "--barrier-timeout",
        "barrier_s",
        default=1800.0,
        show_default=True,
        help="Seconds that processes wait for one another later on.",
    ),
)
_LIMITS = ("join_s", "barrier_s")


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options by which a command is one of several processes, as `**processes`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def process_info_of(processes: Mapping[str, Any]) -> ProcessInfo | None:
    """Returns the place of this process in its run; None where it is the only one."""
    given = {name: value for name, value in processes.items() if name not in _LIMITS}
    return find_process_info(given)


def is_hosted() -> bool:
    """Whether a supervisor serves the coordination, so that a survivor may join again."""
    return os.environ.get(COORDINATION_VARIABLE) == BY_SUPERVISOR


def join(place: ProcessInfo | None, processes: Mapping[str, Any]) -> None:
    """Joins the other processes, before jax looks for devices.

    Raises:
        ProcessError: Some of them did not come in time.
    """
    if place is None:
        return
    from axcore.distributed import TimeLimits, join_processes

    join_processes(
        place.coordinator,
        process_count=place.process_count,
        process_index=place.process_index,
        limits=TimeLimits(**{name: processes[name] for name in _LIMITS}),
        is_hosted=is_hosted(),
    )
