"""Environments: what a reply may be, tools that are called, and what is wrong with a text."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.config import apply_overrides
from axcore.environments import (
    Environment,
    EnvironmentPool,
    PythonEnvironment,
    Reply,
    ToolCall,
    ToolCalls,
    Turn,
    TurnRequest,
)
from axcore.environments.builtin import tool_schema
from axcore.environments.calculator import calculate
from axcore.environments.environment import checked_reply
from axcore.errors import ConfigError, PluginError
from axcore.resilience.run_summary import story
from axcore.rewards import FailureBudget, FieldValue, RewardPool, ScoreRequest
from axcore.rewards.named import user_function
from axcore.rollouts.experiments import grpo_reverse

USER = {"role": "user", "content": "Again."}


@pytest.mark.parametrize(
    ("value", "reply"),
    [
        ("more", Reply(text="more")),
        ([USER], Reply(messages=(USER,))),
        ({"won": True}, Reply(fields={"won": True})),
        (Reply("more", fields={"n": 1}), Reply("more", fields={"n": 1})),
    ],
)
def test_a_reply_is_a_text_messages_or_the_fields_of_an_end(value, reply):
    found = checked_reply(value, ("user",))
    assert found == reply
    assert found.is_end == isinstance(value, dict)
    assert Reply.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "returned None, a NoneType; expected a text"),
        (3, "returned 3, a int"),
        ("", "an empty text; a dict of fields"),
        ([{"role": "tool", "content": "3"}], "and the role 'user'"),
        ([{"role": "user"}], "expected an object with a text `content`"),
        (Reply("a", (USER,)), "has a text and messages"),
    ],
)
def test_what_is_no_reply_is_named(value, error):
    with pytest.raises((TypeError, ValueError), match=error):
        checked_reply(value, ("user",))


BAD = """
import time

def play(prompt, turns, fields):
    return {
        "hangs": lambda: time.sleep(10**6),
        "object": lambda: {"x": object()},
        "large": lambda: "a" * 2_000_000,
        "fine": lambda: "more",
    }[turns[-1].text]()
"""


def test_one_that_fails_is_counted_named_and_in_the_story_of_the_run(tmp_path):
    (tmp_path / "bad_play_of_a_test.py").write_text(BAD)
    fn = user_function(f"{tmp_path}/bad_play_of_a_test.py:play")
    cfg = PythonEnvironment.Config(fn=fn, num_workers=1, time_limit_s=2)
    pool = EnvironmentPool(cfg, FailureBudget())
    pool.log_to(tmp_path)
    pool.begin(4)
    names = ("object", "large", "fine", "hangs")
    found = pool.replies([TurnRequest("ask:", (Turn(name),), {}) for name in names])
    pool.end()
    pool.close()
    assert found == [None, None, Reply("more"), None]
    told = "\n".join(story(tmp_path))
    assert "the environment failed in an episode of 'ask:': it took longer than 2 s" in told
    assert 'bad_play_of_a_test.py", line 6' in told
    assert "it returned 2,000,0" in told


NUMBERS = st.integers(-50, 50).map(lambda n: f"({n})")
SUMS = st.recursive(
    NUMBERS,
    lambda one: st.tuples(one, st.sampled_from("+-*"), one).map("({0[0]}{0[1]}{0[2]})".format),
)


@given(SUMS.filter(lambda text: len(text) < 200))
def test_the_calculator_computes_what_python_does(text):
    assert Fraction(calculate(text)) == Fraction(eval(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1 + 0.2", "0.3"), ("7 / 2", "3.5"), ("7 // 2", "3"), ("2 ** 10", "1024"), ("-3 % 5", "2")],
)
def test_decimals_are_what_they_say(text, value):
    assert calculate(text) == value


@pytest.mark.parametrize(
    "text", ["9**9**9", "2**100000", "__import__('os')", "a + 1", "1 +", "(" * 300, "1e999", "True"]
)
def test_the_calculator_refuses_the_rest(text):
    with pytest.raises(ValueError, match=r"not an expression|too large|characters|Invalid"):
        calculate(text)


def add(first: int, second: int = 1) -> int:
    """Add two numbers.

    Nobody reads this.
    """
    return first + second


def test_tools_answer_each_call_and_errors_are_answers_too():
    environment = ToolCalls.Config(functions={"add": add}, max_result_chars=20).build()
    calls = [
        ToolCall("add", '{"first": 2}', "a"),
        ToolCall("sub", "{}", "b"),
        ToolCall("add", "[1]", "c"),
        ToolCall("add", '{"first": "x"}', "d"),
    ]
    reply = environment.reply("", [Turn("", tuple(calls))], {"num_calls": 2})
    assert [one["tool_call_id"] for one in reply.messages] == ["a", "b", "c", "d"]
    assert reply.messages[0]["content"] == "3"
    assert all("Error" in one["content"] for one in reply.messages[1:])
    assert reply.fields == {"num_calls": 6, "num_failed_calls": 3}
    assert environment.reply("", [Turn("Three.")], {}).is_end


def test_the_schema_of_a_function_is_what_it_says_itself():
    function = tool_schema("add", add)["function"]
    assert function["description"] == "Add two numbers."
    assert function["parameters"] == {
        "type": "object",
        "properties": {"first": {"type": "integer"}, "second": {"type": "integer"}},
        "required": ["first"],
    }


@pytest.mark.parametrize("fn", [lambda *words: "", lambda **named: "", lambda a, /: a])
def test_a_function_that_no_call_can_name_the_parameters_of_is_refused(fn):
    with pytest.raises(ConfigError, match="'f' cannot be called by name: its parameter"):
        _ = ToolCalls.Config(functions={"f": fn}).build().tools


CLASS = """
from axcore.environments import Environment, Reply

class Game(Environment):
    def reply(self, prompt, turns, fields):
        return Reply("more")
"""


def environment_of(text):
    return apply_overrides(grpo_reverse(), [f"data.environment={text}"]).data.environment


def test_a_text_names_a_plugins_one_a_function_or_a_class(tmp_path):
    path = tmp_path / "game_of_a_named_test.py"
    path.write_text(CLASS + "\ndef play(prompt, turns, fields):\n    return {}\n")
    assert environment_of("tools(max_turns=4)") == ToolCalls.Config(max_turns=4)
    assert isinstance(environment_of(f"{path}:play"), PythonEnvironment.Config)
    made = environment_of(f"{path}:Game(max_turns=2)").build()
    assert isinstance(made, Environment)
    assert made.config.max_turns == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tool", "did you mean 'tools'"),
        ("tools(max_turn=4)", "did you mean 'max_turns'"),
        ("json:dump_it", "json has no function 'dump_it'"),
        ("no_such_file.py:play", "there is no file"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(text, error):
    with pytest.raises((ConfigError, PluginError), match=error):
        environment_of(text)


def test_a_field_is_a_reward_and_one_that_is_missing_is_a_failure_or_what_you_say():
    rewards = {
        "won": FieldValue.Config(name="won"),
        "lenient": FieldValue.Config(name="won", missing=0.0),
    }
    pool = RewardPool(rewards)
    found = pool.score([ScoreRequest("", "", one) for one in ({"won": True}, {})])
    assert found[0] == {"won": 1, "lenient": 1}
    assert math.isnan(found[1]["won"])
    assert found[1]["lenient"] == 0
