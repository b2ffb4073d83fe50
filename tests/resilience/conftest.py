"""Supervised processes without jax, that beat, make steps and go wrong as they are asked to."""

import json
import os
import sys
import uuid
from pathlib import Path

import pytest

from axcore.config import evolve
from axcore.launch.children import ProcessStart
from axcore.resilience import read_events
from axcore.resilience.policy import Policy
from axcore.resilience.supervisor import OnThisMachine, Supervisor

WORKER = Path(__file__).with_name("beating_worker.py")
QUICK = Policy(backoff_s=0.05)


@pytest.fixture
def supervisor(tmp_path):
    """Returns a supervisor of processes that make steps with some faults."""

    def make(*faults, processes=2, steps=30, can_wait=False, **policy):
        def starts(left_out):
            environment = {**os.environ, "ATTEMPT": uuid.uuid4().hex}
            count = processes - left_out
            texts = (tmp_path / "run", None, count, steps, json.dumps(faults))
            return [
                ProcessStart(
                    command=tuple(
                        str(index if text is None else text)
                        for text in (sys.executable, WORKER, *texts)
                    ),
                    environment=environment,
                    can_wait=can_wait,
                )
                for index in range(count)
            ]

        return Supervisor(OnThisMachine(starts), tmp_path / "run", evolve(QUICK, **policy))

    return make


@pytest.fixture
def events(tmp_path):
    """Returns the run's events of one name."""

    def found(name):
        logged = read_events(tmp_path / "run")
        assert logged.damaged == ()
        return [event for event in logged.events if event["event"] == name]

    return found
