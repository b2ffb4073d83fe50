"""The place of a process: flags win, then variables, then the engine that started it."""

import pytest

from axcore.errors import ConfigError
from axcore.launch import ProcessInfo, find_process_info
from axcore.launch.kubernetes import kubernetes_process_info
from axcore.launch.skypilot import skypilot_process_info
from axcore.launch.slurm import first_host, slurm_process_info

NOTHING = {"coordinator": None, "process_count": None, "process_index": None}
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[07-10]",
    "SLURM_PROCID": "2",
}
POD = {
    "AXCORE_COORDINATOR": "a-workers-0-0.a:29400",
    "AXCORE_NUM_PROCESSES": "2",
    "JOB_COMPLETION_INDEX": "1",
}
SKY = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6\n",
}


def place_in(environment, **given):
    place = find_process_info({**NOTHING, **given}, environment)
    return place and (place.coordinator, place.process_count, place.process_index)


def test_a_process_that_nobody_placed_is_alone():
    assert place_in({}) is None
    assert place_in({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None


def test_each_engine_says_it_in_its_own_variables():
    assert place_in(SLURM) == ("node07:21234", 4, 2)
    assert place_in(POD) == ("a-workers-0-0.a:29400", 2, 1)
    assert place_in(SKY) == ("10.0.0.5:29400", 2, 0)


def test_a_run_of_one_is_not_joined():
    assert slurm_process_info({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert skypilot_process_info({**SKY, "SKYPILOT_NUM_NODES": "1"}) is None
    assert kubernetes_process_info({"JOB_COMPLETION_INDEX": "1"}) is None


def test_two_steps_of_a_slurm_job_do_not_meet():
    first, second = (slurm_process_info({**SLURM, "SLURM_STEP_ID": step}) for step in "01")
    assert first.coordinator != second.coordinator


def test_flags_win_over_an_engine_whole_or_in_part():
    given = {"coordinator": "other:1", "process_count": 2, "process_index": 1}
    assert place_in(SLURM, **given) == ("other:1", 2, 1)
    assert place_in(SLURM, coordinator="other:1") == ("other:1", 4, 2)


def test_flags_that_are_missing_are_named():
    with pytest.raises(ConfigError, match="--coordinator without --num-processes, --process-id"):
        place_in({}, coordinator="host:1")


def test_two_engines_that_claim_a_process_are_an_error():
    with pytest.raises(ConfigError) as refused:
        place_in({**SLURM, **SKY})
    assert "2 engines claim this process" in refused.value.what
    assert "skypilot: process 0 of 2" in refused.value.what
    assert "slurm: process 2 of 4" in refused.value.what


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'; expected a number"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is ''"),
        ({**SLURM, "SLURM_PROCID": "4"}, "process 4 of 4, says Slurm"),
        ({name: POD[name] for name in POD if "NUM" not in name}, "AXCORE_NUM_PROCESSES is not set"),
        ({name: SKY[name] for name in SKY if "RANK" not in name}, "SKYPILOT_NODE_RANK is not set"),
    ],
)
def test_what_an_engine_says_wrongly_is_an_error(environment, what):
    with pytest.raises(ConfigError, match=what.replace("(", r"\(")):
        place_in(environment)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("solo", "solo"),
        ("b,a", "b"),
        ("node[1-3,7],other", "node1"),
        ("node[007-010]", "node007"),
        ("n[5,9]", "n5"),
        ("rack[0-1]node[2-3].example.org,x", "rack0node2.example.org"),
    ],
)
def test_the_first_host_of_a_list_is_found(hosts, first):
    assert first_host(hosts) == first


def test_a_place_outside_of_its_run_is_refused():
    with pytest.raises(ConfigError, match="this is process 2 of 2, says flags"):
        ProcessInfo(coordinator="a:1", process_count=2, process_index=2, source="flags")
