"""One engine over several processes answers as one process with the same devices does."""

import json
from pathlib import Path

import pytest
from several_processes import finish, start_all

from axcore.distributed.message_tree import decoded, encoded
from axcore.inference.processes import EngineProcesses
from axcore.inference.programs import Programs

WORKER = Path(__file__).with_name("engine_worker.py")


def ran(count, devices, **task):
    """Returns what each process printed last, and how it ended."""
    processes = start_all(WORKER, json.dumps(task), count=count, devices=devices)
    ended = [finish(one) for one in processes]
    return [json.loads((one.stdout or "null").splitlines()[-1]) for one in ended], ended


def answers(count, devices, **task):
    found, ended = ran(count, devices, **task)
    assert all(one.exit_code == 0 for one in ended), [one.stderr for one in ended]
    # All processes know what process 0 was answered.
    assert all(one["answers"] == found[0]["answers"] for one in found)
    # The others plan nothing.
    assert [one["steps"] > 0 for one in found] == [True] + [False] * (count - 1)
    return found[0]["answers"]


# A sum of two numbers has one order, whoever adds them. Of more, gloo adds
# in another order than the runtime does among devices of one process.
@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        {"has_grammar": True, "replace": 3},
        {"engine": {"speculation": "draft"}},
        {"engine": {"fixed_shapes": True, "weights": "int8"}},
    ],
    ids=["plain", "draft", "fixed"],
)
def test_two_processes_answer_bit_by_bit_as_one(task):
    assert answers(2, 1, mesh={"model": 2}, **task) == answers(1, 2, mesh={"model": 2}, **task)


@pytest.mark.slow
def test_two_processes_of_four_devices_answer_as_one_of_eight():
    task = {"mesh": {"fsdp": 4, "model": 2}, "engine": {"num_decode_steps": 1}}
    one, two = answers(1, 8, **task), answers(2, 4, **task)
    for left, right in zip(one[0], two[0], strict=True):
        assert left[0] == right[0]
        numbers = [[token[1] for token in answer[1]] for answer in (left, right)]
        # Products over `fsdp` are sums of four numbers: equal to some roundings.
        assert numbers[0] == pytest.approx(numbers[1], abs=2e-5)


@pytest.mark.slow
def test_a_process_that_is_lost_ends_the_engine_and_is_named():
    found, ended = ran(2, 1, mesh={"model": 2}, dies=1)
    assert found[0]["error"].startswith("ProcessError: engine: process 1 was lost")
    assert ended[0].exit_code == 9  # a supervisor starts all processes again


@pytest.mark.slow
def test_only_process_0_takes_requests():
    found, _ = ran(2, 1, mesh={"model": 2}, asks=1)
    assert found[1]["error"].startswith("EngineError: process 1 answers no requests")


class Recorded:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **options: self.calls.append((name, args, options))


class Said:
    """A tree that keeps what is said."""

    index, error = 0, None

    def __init__(self):
        self.said = []

    def send(self, value):
        self.said.append(decoded(encoded(value)))


def test_each_call_is_said_before_it_runs():
    processes = EngineProcesses.__new__(EngineProcesses)
    processes.tree, processes.is_first = Said(), True
    programs = Recorded()
    said = processes.saying(programs)
    said.sample("rows", "full", prompt=b"digest")
    assert processes.tree.said == [["sample", ["rows", "full"], {"prompt": b"digest"}]]
    assert programs.calls == [("sample", ("rows", "full"), {"prompt": b"digest"})]


def test_every_method_that_uses_the_device_is_said():
    """A new method of `Programs` is either said, or one that all processes call by themselves."""
    from axcore.inference import processes

    everywhere = {"caches", "replace_weights"}
    methods = {name for name in vars(Programs) if not name.startswith("_")}
    assert methods == processes._CALLS | everywhere
