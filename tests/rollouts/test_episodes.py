"""Episodes of several turns: their tokens, what counts of them, and that a resumed run repeats."""

import json
import math

import jax
import numpy as np
import pytest
from chat_families import FAMILIES, tokenizer_of
from small_rollouts import small, stop_at

from axcore.config import evolve
from axcore.data import Policy
from axcore.environments import PythonEnvironment, ToolCalls
from axcore.errors import ConfigError, DataError
from axcore.inference import Completion, SampledToken, Sampling
from axcore.rewards import FailureBudget, PythonReward
from axcore.rewards.named import user_function
from axcore.rollouts import PromptFiles
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks.policy_gradient import TokenArray
from axcore.testing.tiny import trainer_on

GAME = """
def play(prompt, turns, fields):
    number = turns[-1].text
    if number == fields["answer"] or len(turns) == 3:
        return {"won": number == fields["answer"], "tries": len(turns)}
    return " higher " if number < fields["answer"] else " lower "

def two(prompt, turns, fields):
    return f" turn {len(turns)}: " if len(turns) < 2 else {"seen": [one.text for one in turns]}

def fails(prompt, turns, fields):
    return {"raises": {}, "hangs": None}[fields["answer"]]["x"]

def won(prompt, completion, fields):
    return fields["won"] / fields["tries"]

def any_text(prompt, completion, fields):
    return len(fields["turns"]) + fields["completion_tokens"] / 100
"""


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    """Returns functions of a module of its own, as other processes import it."""
    path = tmp_path_factory.mktemp("game") / "game_of_a_test.py"
    path.write_text(GAME)
    return lambda name: user_function(f"{path}:{name}")


def of_two_turns(game, **changes):
    environment = PythonEnvironment.Config(fn=game("two"), max_turn_tokens=4, num_workers=1)
    return small(
        **{
            "data.environment": environment,
            "data.rewards": {"any": PythonReward.Config(fn=game("any_text"), num_workers=1)},
            "data.max_new_tokens": 24,
            "data.seq_len": 32,
            "data.epochs_per_rollout": 1,
            # So that random weights end about half of their turns.
            "data.sampling": Sampling(temperature=1.0, logit_bias=((257, 4.0),)),
            "data.engine.sampler_kinds": ("full",),
            "data.engine.page_size": 4,
            **changes,
        }
    )


class Scripted:
    """Samples texts that are given, in their order, in the place of an engine."""

    running = None

    def __init__(self, data, *turns):
        self._data, self._turns, self.asked = data, list(turns), []

    def begin(self, policy, state, requests, **options):
        return self.submit(requests, **options)

    def submit(self, requests, **options):
        self.asked.append([list(one.tokens) for one in requests])
        texts = self._turns.pop(0)
        return lambda: [self._completion(text) for text in texts]

    def _completion(self, text):
        tokenizer = self._data.tokenizer
        ids = tokenizer.encode_written(text).tolist()
        sampled = tuple(SampledToken(token, -0.5) for token in ids)
        return Completion(text, sampled, "stop", end=SampledToken(tokenizer.end_ids[0], -0.25))


def play(data, prompts, *turns):
    """Returns the rollouts of prompts whose turns are given, and what was asked."""
    sampler = Scripted(data, *turns)
    data._episodes._sampler = sampler
    number = range(len(prompts))
    order = dict(zip(number, prompts, strict=True))
    policy = Policy(None, 3, {})
    data._prompts = ([*order.values()], [])
    data._order = [*number]
    found = data.begin_rollout(policy, number)()
    data.on_run_end()
    return found, sampler.asked


@pytest.fixture
def game_data(game, tmp_path):
    """Returns the loader of a game of three tries, for one prompt."""

    def made(**changes):
        path = tmp_path / "prompts.jsonl"
        path.write_text(json.dumps({"prompt": "number:", "answer": "5"}) + "\n")
        data = small(
            **{
                "data.prompts": PromptFiles.Config(path=str(path)),
                "data.validation_fraction": 0.0,
                "data.environment": PythonEnvironment.Config(fn=game("play"), num_workers=1),
                "data.rewards": {"won": PythonReward.Config(fn=game("won"), num_workers=1)},
                "data.batch_size": 4,
                "data.group_size": 4,
                "data.max_new_tokens": 40,
                "data.seq_len": 64,
                "data.epochs_per_rollout": 1,
                **changes,
            }
        ).data
        return data.build()

    return made


def test_a_number_is_found_in_three_turns_and_only_tries_count(game_data):
    data = game_data()
    (prompt,) = data._prompts[0]
    found, asked = play(data, [prompt], ["5", "3", "9", "1"], ["5", "4", "2"], ["6", "5"])
    assert [one.rewards["won"] for one in found] == [1, 0.5, 0, pytest.approx(1 / 3)]
    third = found[2]
    end = data.tokenizer.eos_id
    text = [*b"9", end, *b" lower ", *b"4", end, *b" higher ", *b"6", end]
    assert list(third.tokens) == text
    # What the second turn continues are the very tokens of the first, and the reply behind them.
    assert asked[1][1] == [*prompt.tokens, *text[:9]]
    sampled = [*b"9", end, *b"4", end, *b"6", end]
    batch = data.batch(found)
    counts = batch["loss_weights"][2] > 0
    assert batch["targets"][2][counts].tolist() == sampled
    assert batch["sampler_log_probs"][2][counts].tolist() == [-0.5, -0.25] * 3
    assert not batch["sampler_log_probs"][2][~counts].any()


def test_an_episode_ends_where_no_token_is_left_and_keeps_its_last_reply_out(game_data):
    data = game_data(**{"data.max_new_tokens": 10})
    (prompt,) = data._prompts[0]
    found, _ = play(data, [prompt], ["3"] * 4)
    assert [(len(one.tokens), one.replies) for one in found] == [(2, ())] * 4
    assert math.isnan(found[0].rewards["won"])  # the game has not said who won


def test_a_rollout_with_replies_survives_being_written(game_data):
    data = game_data()
    (prompt,) = data._prompts[0]
    found, _ = play(data, [prompt], ["5", "3", "3", "3"], ["5", "5", "5"])
    for one in found:
        written = one.to_json()
        assert json.loads(json.dumps(written, allow_nan=False)) == written  # as checkpoints need it
        assert Rollout.from_json(written) == one


def test_what_is_recorded_is_at_the_places_of_all_tokens_and_replies_count_for_nothing():
    one = Rollout(
        prompt=(4,),
        tokens=(7, 8, 9),
        log_probs=(-1.0, 0.0, -2.0),
        is_ended=True,
        rewards={},
        reward=1.0,
        group=0,
        sample=0,
        weight_version=0,
        recorded={"old_log_probs": np.array([-1.5, -9.0, -2.5], np.float32)},
        replies=((1, 2),),
    )
    batch = batch_of([one], 4, 0, (), recorded={"old_log_probs": TokenArray()})
    assert batch["loss_weights"].tolist() == [[1, 0, 1, 0]]
    assert batch["old_log_probs"].tolist() == [[-1.5, -9, -2.5, 0]]


def test_an_environment_that_fails_leaves_an_episode_without_a_reward(game, game_data, capfd):
    budget = FailureBudget(num_allowed=4)
    environment = PythonEnvironment.Config(fn=game("fails"), num_workers=1)
    data = game_data(**{"data.environment": environment, "data.reward_failures": budget})
    (prompt,) = data._prompts[0]
    found, _ = play(data, [prompt], ["5", "3", "9", "1"])
    assert all(math.isnan(one.reward) for one in found)
    batch = data.batch(found)
    assert batch["failed.environment"].tolist() == [1] * 4
    assert not batch["row_weights"].any()
    assert "the environment PythonEnvironment failed: it raised KeyError" in capfd.readouterr().err
    strict = evolve(data.config, reward_failures=FailureBudget(num_allowed=0)).build()
    with pytest.raises(DataError, match="environment PythonEnvironment failed for 1 of 4"):
        play(strict, [prompt], ["5", "3", "9", "1"])


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'


@pytest.fixture
def with_tools(game_data, tmp_path):
    """Returns the loader of prompts whose answers may call a calculator, by a family's template."""

    def made(family, **changes):
        said = FAMILIES[family]
        folder, names = tmp_path / "tokenizer", {one: said[one] for one in ("special", "ends")}
        tokenizer = tokenizer_of(folder, said["template"], **names)
        return game_data(
            **{
                "data.tokenizer": tokenizer.config,
                "data.environment": ToolCalls.Config(num_workers=1),
                "data.rewards": {"exact": small().data.rewards["exact"]},
                "data.max_new_tokens": 400,
                "data.seq_len": 900,
                "data.batch_size": 2,
                "data.group_size": 2,
                **changes,
            }
        )

    return made


def test_calls_are_run_and_their_results_are_the_tokens_of_the_template(with_tools):
    data = with_tools("qwen2.5")
    (prompt,) = data._prompts[0]
    found, asked = play(data, [prompt], [CALL % "2+3", CALL % "1/0"], ["5", "6"])
    assert [one.rewards["exact"] for one in found] == [1, 0]
    shown = [data.tokenizer.decode(one[len(prompt.tokens) :]) for one in asked[1]]
    assert "<tool_response>\n5\n</tool_response>" in shown[0]
    assert "Error: ZeroDivisionError" in shown[1]
    messages = [
        {"role": "user", "content": "number:"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"function": {"name": "calculator", "arguments": {"expression": "2+3"}}}
            ],
        },
        {"role": "tool", "content": "5"},
    ]
    tools = list(data.config.environment.build().tools)
    wanted = data.tokenizer.encode_chat(messages, tools=tools).tolist()
    assert asked[1][0] == wanted


def test_a_template_that_cannot_be_driven_is_refused_by_name(game, with_tools):
    environment = PythonEnvironment.Config(fn=game("play"))
    data = with_tools("hermes-3")
    with pytest.raises(DataError, match="cannot be driven in tokens, in conversations with tool"):
        data.summary()
    with pytest.raises(DataError, match="makes a model write calls is not known"):
        with_tools("mistral-nemo").summary()
    # A text needs no template.
    assert with_tools("hermes-3", **{"data.environment": environment}).summary()


def test_a_run_resumes_with_the_function_of_another_process(game):
    one = of_two_turns(game).data.build()
    of_others = PythonEnvironment.Config(fn=lambda *_: {}, max_turn_tokens=4, num_workers=1)
    another = evolve(one.config, environment=of_others).build()
    longer = evolve(of_others, max_turns=3)
    assert one._identity == another._identity
    assert one._identity != evolve(one.config, environment=longer).build()._identity


def test_a_reward_may_not_be_called_environment(game):
    rewards = {"environment": PythonReward.Config(fn=game("won"))}
    with pytest.raises(ConfigError, match="a reward is named 'environment'"):
        of_two_turns(game, **{"data.rewards": rewards}).data.build()


@pytest.mark.slow
def test_a_later_turn_reads_the_tokens_of_the_one_before_from_the_cache(game):
    model = small().model.build()
    policy = Policy(model, 0, model.init(0))
    cached, num_replies = [], []
    for cfg in (of_two_turns(game), of_two_turns(game, **{"data.environment.max_turns": 1})):
        data = cfg.data.build()
        found = data.begin_rollout(policy, [0, 1])()
        cached.append(data._sampler._engine.stats().num_cached_prompt_tokens)
        num_replies.append(sum(len(one.replies) for one in found))
        data.on_run_end()
    assert num_replies[0] > num_replies[1] == 0
    # A page of four tokens at least, of each text that continues.
    assert cached[0] - cached[1] >= 4 * num_replies[0]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"data.max_lag": 1, "data.batches_per_rollout": 2}])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_of_two_turns_that_resumes_ends_with_the_same_bits(tmp_path, game, changes, step):
    trainer = trainer_on(of_two_turns(game, **changes), 1)
    whole = trainer.run(tmp_path / "whole")
    trainer.run(tmp_path / "parts", [stop_at(step)], returns_when_stopped=True)
    resumed = trainer.run(tmp_path / "parts")
    assert (resumed.step, whole.validation) == (4, resumed.validation)
    jax.tree.map(np.testing.assert_array_equal, whole.state.model, resumed.state.model)
