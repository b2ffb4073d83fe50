"""`ProcessInfo`: which process of a run this is, read from flags or from what an engine sets.

Every engine describes a process in variables of its own. The functions that read them take the
environment as a value and change nothing.
"""

import os
from collections.abc import Mapping
from typing import Any

import attrs

from axcore.errors import ConfigError
from axcore.plugins import JobLauncher, plugin_host

COORDINATOR = "AXCORE_COORDINATOR"
NUM_PROCESSES = "AXCORE_NUM_PROCESSES"
PROCESS_ID = "AXCORE_PROCESS_ID"
"""What replaces the flags of these names where they are left out."""

SECRET_VARIABLE = "AXCORE_LAUNCH_SECRET"
"""What the agents of one launch know, and nobody else."""

PORT = 29400
"""Of the coordinator, where the engine gives every run a host of its own."""

_FLAGS = {
    "coordinator": "--coordinator",
    "process_count": "--num-processes",
    "process_index": "--process-id",
}


@attrs.frozen(kw_only=True)
class ProcessInfo:
    """Which process of a run this is.

    Args:
        coordinator: `host:port` of process 0.
        process_count: Processes in all.
        process_index: This one, from 0.
        source: Who says so, for people.
    """

    coordinator: str
    process_count: int
    process_index: int
    source: str

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.process_index < self.process_count:
            raise ConfigError(
                f"this is process {self.process_index} of {self.process_count}, says {self.source}",
                where="--process-id",
                hint="number processes from 0 to N-1, N being --num-processes",
            )


def find_process_info(
    given: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> ProcessInfo | None:
    """Return the place of this process, or None where it is the only one.

    Flags come first, then their variables, then the engine's; a flag next to an engine replaces
    that part of what the engine says.

    Args:
        given: `coordinator`, `process_count` and `process_index`, None where nobody named them.
        environment: Variables; those of the process where left out.

    Raises:
        ConfigError: Some of the three are missing, a variable is not a number, or two engines claim
            the process.
    """
    environment = os.environ if environment is None else environment
    named = {name: value for name, value in given.items() if value is not None}
    # All three given: no engine is asked, whose variables
    # may be left over from a shell that it started.
    if len(named) == len(_FLAGS):
        return ProcessInfo(**named, source="flags")
    found = engine_process_info(environment)
    if found is not None:
        return attrs.evolve(found, **named)
    if named:
        missing = [flag for name, flag in _FLAGS.items() if name not in named]
        raise ConfigError(
            f"{', '.join(_FLAGS[name] for name in named)} without {', '.join(missing)}",
            where="several processes",
            hint="name all three, in every process; or start the run by `axcore launch`",
        )
    return None


def engine_process_info(environment: Mapping[str, str]) -> ProcessInfo | None:
    """Return the place that an engine gave a process, or None.

    Raises:
        ConfigError: Two engines say different things, or a variable is not a number.
    """
    found: dict[str, ProcessInfo] = {}
    for record in plugin_host().records(JobLauncher):
        if record.process_info is not None:
            place = record.call("process_info", environment, returns=ProcessInfo | None)
            if place is not None:
                found[record.name] = place
    # A default would number two processes alike, and both would wait for the others.
    if len(found) > 1:
        said = "; ".join(
            f"{name}: process {place.process_index} of {place.process_count}"
            for name, place in found.items()
        )
        raise ConfigError(
            f"{len(found)} engines claim this process ({said})",
            where="environment",
            hint="name --coordinator, --num-processes and --process-id, or unset the variables of "
            "the engine that did not start it",
        )
    return next(iter(found.values()), None)


def process_flags(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variables of the flags say, as `find_process_info` takes it.

    Raises:
        ConfigError: One that is to be a number is none.
    """
    return {
        "coordinator": environment.get(COORDINATOR),
        **{
            field: integer(environment, name) if name in environment else None
            for field, name in (("process_count", NUM_PROCESSES), ("process_index", PROCESS_ID))
        },
    }


def integer(environment: Mapping[str, str], name: str) -> int:
    """Return a variable as a number.

    Raises:
        ConfigError: It is not there, or no number.
    """
    text = environment.get(name, "")
    if not text.isdecimal():
        raise ConfigError(
            f"{name} is {text!r}; expected a number from 0" if text else f"{name} is not set",
            where="environment",
            hint=f"set {name}, or name --coordinator, --num-processes and --process-id",
        )
    return int(text)
