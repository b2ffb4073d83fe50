"""Bad rewards: each is counted and named and is nan, and none costs another completion."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from axcore.cli.main import group
from axcore.errors import DataError
from axcore.resilience.event_log import read_events
from axcore.resilience.run_summary import story
from axcore.rewards import (
    ExactMatch,
    FailureBudget,
    PythonReward,
    RegexMatch,
    Reward,
    RewardPool,
    ScoreRequest,
)
from axcore.rewards.named import user_function

BAD = """
import os, random, signal, sys, time

def score(prompt, completion, fields):
    return {
        "string": lambda: "yes",
        "none": lambda: None,
        "nan": lambda: float("nan"),
        "infinite": lambda: float("inf"),
        "raises": lambda: {}[completion],
        "leaves": lambda: sys.exit(3),
        "exits": lambda: os._exit(3),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "allocates": lambda: len(bytearray(1 << 40)),
        "hangs": lambda: time.sleep(10**6),
        "says": lambda: print(os.getpid(), flush=True) or time.sleep(10**6),
        "number": lambda: 7,
        "process": os.getpid,
        "truth": lambda: True,
        "random": random.random,
        "text": lambda: fields["answer"] == prompt,
    }[completion]()
"""


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """Returns a config of the rewards above, in a module of their own name."""
    path = tmp_path_factory.mktemp("rewards") / "bad_rewards_of_a_test.py"
    path.write_text(BAD)

    def make(**values):
        fn = user_function(f"{path}:score")
        return PythonReward.Config(fn=fn, **{"num_workers": 1, "time_limit_s": 300, **values})

    return make


@pytest.fixture
def pool_of():
    pools = []

    def make(rewards, **budget):
        pools.append(RewardPool(rewards, FailureBudget(**budget)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def scores(pool, *completions, name="bad"):
    requests = [ScoreRequest("ab=", one, {"answer": "ab="}) for one in completions]
    return [one[name] for one in pool.score(requests)]


FAILURES = {
    "string": "returned 'yes', a str",
    "none": "returned None, a NoneType",
    "nan": "returned nan",
    "infinite": "returned inf",
    "raises": "KeyError: 'raises'",
    "leaves": "SystemExit: 3",
    "exits": "exit code 3",
    "killed": "SIGKILL",
    "allocates": "MemoryError",
}


def test_a_reward_that_fails_is_nan_and_named_and_the_others_are_computed(bad, pool_of, tmp_path):
    pool = pool_of({"bad": bad(), "exact": ExactMatch.Config()})
    pool.log_to(tmp_path)
    kinds = [*FAILURES, "number", "truth", "text"]
    found = scores(pool, *kinds)
    assert [math.isnan(one) for one in found[: len(FAILURES)]] == [True] * len(FAILURES)
    assert found[len(FAILURES) :] == [7, 1, 1]
    events = {one["completion"]: one for one in read_events(tmp_path).events}
    assert list(events) == list(FAILURES)
    for kind, error in FAILURES.items():
        assert error in events[kind]["error"]
    assert "bad_rewards_of_a_test.py" in events["raises"]["details"]


def test_one_that_hangs_shows_with_its_stack_in_the_story_of_the_run(bad, pool_of, tmp_path):
    pool = pool_of({"bad": bad(time_limit_s=0.5)})
    pool.log_to(tmp_path)
    assert math.isnan(scores(pool, "hangs")[0])
    told = "\n".join(story(tmp_path))
    assert "the reward 'bad' failed for a completion of 'ab=': it took longer than 0.5 s" in told
    assert 'bad_rewards_of_a_test.py", line 15 in <lambda>' in told


def test_a_pattern_that_takes_forever_is_ended_though_it_holds_the_lock(pool_of):
    pool = pool_of({"bad": RegexMatch.Config(pattern=r"\A(a+)+\Z", time_limit_s=0.5)})
    assert math.isnan(scores(pool, "a" * 50 + "b")[0])


def test_above_the_budget_the_run_ends_with_what_failed_first(bad, pool_of, capfd):
    pool = pool_of({"bad": bad()}, num_allowed=2, max_failed_fraction=0.1)
    assert len(scores(pool, "string", "none", *["number"] * 10)) == 12
    with pytest.raises(DataError) as caught:
        scores(pool, "raises", *["number"] * 10)
    assert "'bad' failed for 3 of 23 completions in 2 steps" in str(caught.value)
    assert "KeyError: 'raises'" in str(caught.value)
    assert "bad_rewards_of_a_test.py" in str(caught.value)
    assert 'data.rewards["bad"]' in str(caught.value)
    assert "more are counted as failed.bad" in capfd.readouterr().err


def test_a_reward_that_only_hangs_ends_the_run_before_all_of_the_batch_has_hung(bad, pool_of):
    pool = pool_of({"bad": bad(time_limit_s=0.2)}, num_allowed=1, max_failed_fraction=0.0)
    with pytest.raises(DataError, match=r"failed for 2 of 1000 completions"):
        scores(pool, *["hangs"] * 1000)


def test_old_failures_leave_the_budget(bad, pool_of):
    budget = {"num_allowed": 1, "max_failed_fraction": 0.0, "over_steps": 2}
    pool = pool_of({"bad": bad()}, **budget)
    for _ in range(3):
        assert math.isnan(scores(pool, "string", "number")[0])
        assert scores(pool, "number") == [7]


def test_random_numbers_are_the_completions_and_not_the_workers(bad, pool_of):
    first = scores(pool_of({"bad": bad(num_workers=2)}), *["number", "random"] * 4)
    second = scores(pool_of({"bad": bad()}), "random", "number")
    assert set(first) == {7, second[0]}


def test_a_reward_that_cannot_be_imported_ends_the_run_at_once(pool_of, tmp_path):
    path = tmp_path / "reward_for_one_process.py"
    path.write_text("import sys\nassert 'pytest' in sys.modules\ndef score(*_):\n    return 1\n")
    cfg = PythonReward.Config(fn=user_function(f"{path}:score"))
    with pytest.raises(DataError, match="cannot be made in a process of its own: AssertionError"):
        scores(pool_of({"bad": cfg}), "number")


class Raises(Reward):
    """Raises, here in the process."""

    def score(self, prompt, completion, fields):
        return {"number": 7}[completion]


def test_a_reward_that_runs_here_is_counted_alike(pool_of):
    found = scores(pool_of({"bad": Raises.Config()}), "raises", "number")
    assert math.isnan(found[0])
    assert found[1] == 7


def test_a_pool_that_is_closed_leaves_no_process_and_starts_another(bad, pool_of):
    pool = pool_of({"bad": bad()})
    (first,) = scores(pool, "process")
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first), 0)
    assert scores(pool, "process") != [first]


TRAINER = """
import sys, threading
from axcore.rewards import PythonReward, RewardPool, ScoreRequest
from axcore.rewards.named import user_function
cfg = PythonReward.Config(fn=user_function(sys.argv[1]), num_workers=1)
RewardPool({"bad": cfg}).score([ScoreRequest("", "says", {})])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_trainer(bad, number):
    file = Path(bad().fn.__code__.co_filename)
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, f"{file}:score"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert trainer.stdout.readline()  # the worker's
    trainer.send_signal(number)
    trainer.wait()
    # The pipe to the trainer is the worker's as well: it ends when both have.
    assert trainer.stdout.read() == b""
    trainer.stdout.close()


def test_runs_why_tells_of_rewards_also_where_nobody_supervised(bad, pool_of, tmp_path):
    pool = pool_of({"bad": bad()})
    pool.log_to(tmp_path)
    scores(pool, "raises")
    result = CliRunner().invoke(group, ["runs", "why", str(tmp_path)])
    assert "KeyError: 'raises'" in result.output


SCRIPT = """
from axcore.rewards import PythonReward, RewardPool, ScoreRequest, WorkerReward

LENGTH = 3

class Short(WorkerReward):
    def score(self, prompt, completion, fields):
        return len(completion) <= LENGTH

def double(prompt, completion, fields):
    return 2 * LENGTH

if __name__ == "__main__":
    pool = RewardPool({"short": Short.Config(), "double": PythonReward.Config(fn=double)})
    print(pool.score([ScoreRequest("", "abc", {})]))
"""


def test_rewards_of_a_script_run_in_processes_without_what_else_the_script_does(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'short': 1.0, 'double': 6.0}]\n"
