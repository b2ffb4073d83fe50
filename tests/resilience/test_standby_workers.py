"""A process that waits for its turn is believed from its turn on."""

import os
import sys

import pytest
from engine_run import wait_for

from axcore.launch.children import ProcessStart
from axcore.resilience.standby_workers import StandbyProcess

WAITS = """
import os, sys
beats = int(os.environ["AXCORE_SUPERVISOR"].split(",")[1])
lines = open(int(os.environ["AXCORE_STANDBY"]))
os.write(beats, b"-1 stood_down\\n")
lines.readline()
os.write(beats, b"-1 stood_down\\n")  # it does not know of its turn yet
print("late", file=sys.stderr, flush=True)
lines.readline()
os.write(beats, b"-1 start\\n4 step\\n-1 stood_down\\n")
lines.readline()
"""


@pytest.fixture
def standby():
    start = ProcessStart(command=(sys.executable, "-c", WAITS), environment=dict(os.environ))
    process = StandbyProcess(start, 0, "")
    yield process, start
    process.close()


def test_a_survivor_that_reports_late_that_it_waits_has_not_left_again(standby):
    process, start = standby
    wait_for(lambda: process.read_beats() and process.has_stood_down, "the survivor")
    assert process.begin(start)
    wait_for(lambda: list(process.child.error_tail) == ["late"], "a late report")
    process.read_beats()
    assert not process.has_stood_down
    process.ask_to_leave()
    wait_for(lambda: process.read_beats() and process.has_stood_down, "its leave")
    assert process.last_step == 4
