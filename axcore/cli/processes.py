"""The options by which a command is one of several processes, and how it joins the others."""

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
        help="Address of process 0 in a run of several; launchers set it.",
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


_PLACE = ("coordinator", "process_count", "process_index")
_LIMITS = ("join_s", "barrier_s")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, whose values are for `place_of` and `join`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def place_of(named: Mapping[str, Any]) -> ProcessInfo | None:
    """Return the place of this process in its run; None where it is the only one.

    Args:
        named: The options of a command, with others or without.

    Raises:
        ConfigError: See `find_process_info`.
    """
    return find_process_info({name: named[name] for name in _PLACE})


def is_hosted() -> bool:
    """Whether a supervisor serves the coordination, so that a survivor may join again."""
    return os.environ.get(COORDINATION_VARIABLE) == BY_SUPERVISOR


def join(place: ProcessInfo | None, named: Mapping[str, Any]) -> None:
    """Join the other processes, before jax looks for devices.

    Args:
        place: What `place_of` returned.
        named: The options of a command.

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
        limits=TimeLimits(**{name: named[name] for name in _LIMITS}),
        is_hosted=is_hosted(),
    )
