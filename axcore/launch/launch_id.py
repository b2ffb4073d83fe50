"""`--launch-id`: which launch a start of `axcore train` is of; its restarts are of the same."""

import secrets
from collections.abc import Mapping, Sequence

_OPTION = "--launch-id"


def with_launch_id(arguments: Sequence[str]) -> tuple[str, ...]:
    """Returns arguments of `axcore train` that name this launch, where a restart must know it."""
    named = {one.partition("=")[0] for one in arguments}
    is_wanted = "--from-step" in named and _OPTION not in named
    return (*arguments, *((_OPTION, secrets.token_hex(4)) if is_wanted else ()))


def launch_of(launch_id: str, environment: Mapping[str, str]) -> str:
    """Returns the launch of this start; "" if it is of none.

    A script that is given to Slurm twice is two launches; a job that is requeued stays one.
    """
    job = environment.get("SLURM_JOB_ID")
    return f"{launch_id}-{job}" if launch_id and job else launch_id
