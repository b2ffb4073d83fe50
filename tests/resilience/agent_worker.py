"""An agent of a run of `beating_worker.py`, for tests: it needs no jax.

Arguments: a run directory, hosts in all, which of them this is, the coordinator's address, hosts
that the run wants, steps, faults as JSON, and the policy as JSON.
"""

import json
import sys
from pathlib import Path

from axcore.config import evolve
from axcore.errors import AxcoreError
from axcore.launch import Job
from axcore.launch.process_info import ProcessInfo
from axcore.resilience.agent import Agent
from axcore.resilience.policy import Policy

WORKER = Path(__file__).with_name("beating_worker.py")


def main():
    directory, count, rank, address, wanted, steps, faults, policy = sys.argv[1:]
    # Each process learns its number and the number of all from its environment.
    command = (sys.executable, str(WORKER), directory, "-", "-", steps, faults)
    job = Job(name="test", command=(*command, f"--dir={directory}"), processes=int(wanted))
    info = ProcessInfo(
        coordinator=address, process_count=int(count), process_index=int(rank), source="a test"
    )
    settings = {"backoff_s": 0.05, "host_s": 3.0, "rejoin_s": 10.0, **json.loads(policy)}
    agent = Agent(info, job, evolve(Policy(), **settings), b"known to all of this test")
    try:
        sys.exit(agent.run())
    except AxcoreError as error:  # as the command line does
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
