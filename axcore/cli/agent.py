"""`axcore agent`: own the processes of a run on one host, with the agents of the other hosts."""

import os
import secrets
import sys

import click

from axcore.cli import options
from axcore.cli.interrupts import exits_on_interrupt
from axcore.config import apply_overrides
from axcore.errors import ConfigError
from axcore.launch import Job
from axcore.launch.local import free_port
from axcore.launch.process_info import ProcessInfo, find_process_info, process_flags
from axcore.plugins import plugin_host
from axcore.resilience.agent import Agent
from axcore.resilience.peers import launch_secret
from axcore.resilience.policy import Policy


@click.command(context_settings={"ignore_unknown_options": True})
@options.experiment
@click.argument("training", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-n", "--processes", type=int, help="Hosts that the run uses at a time; by default all."
)
@options.policies
@exits_on_interrupt()
def agent(
    experiment: str, training: tuple[str, ...], processes: int | None, policies: tuple[str, ...]
) -> None:
    """Supervise `axcore train EXPERIMENT` over hosts: run this once on each, with the same words.

    `axcore launch ENGINE --supervise` starts it. The engine says which of the hosts this is; where
    none does, AXCORE_COORDINATOR, AXCORE_NUM_PROCESSES and AXCORE_PROCESS_ID say it. Options that
    are not listed here are those of `axcore train`.
    """
    plugin_host().require_healthy()
    info = find_process_info(process_flags(os.environ)) or _alone()
    wanted = info.process_count if processes is None else processes
    if not 0 < wanted <= info.process_count:
        raise ConfigError(
            f"the run wants {wanted} hosts of {info.process_count}",
            where="--processes",
            hint=f"-n {info.process_count}",
        )
    job = Job.training((experiment, *training), processes=wanted)
    policy: Policy = apply_overrides(Policy(), policies, set_in="--policy")
    # Nobody joins the agent of a single host.
    is_alone = info.process_count == 1
    secret = secrets.token_bytes() if is_alone else launch_secret(os.environ)
    sys.exit(Agent(info, job, policy, secret).run())


def _alone() -> ProcessInfo:
    """Return the place of the only host of a run."""
    return ProcessInfo(
        coordinator=f"localhost:{free_port()}", process_count=1, process_index=0, source="axcore"
    )
