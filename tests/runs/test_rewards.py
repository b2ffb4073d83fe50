"""A reward model as a run: trained by its experiment, resumed, and asked for rewards."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.errors import ConfigError, DataError
from axcore.experiments.named import load_experiment
from axcore.layers import whole_rows
from axcore.rewards import ModelReward, RewardPool, ScoreRequest
from axcore.runs import load_run, open_model, reward_of
from axcore.tasks import rewards
from axcore.testing import trainer_on


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = ({"prompt": f"{n}?", "chosen": "xx", "rejected": "yy"} for n in range(40))
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


@pytest.fixture(scope="module")
def cfg(trained, pairs):
    settings = [f"init_from.path={trained[0]}", f"data.source.path={pairs}"]
    settings += ["learner.schedule.peak=0.003", "**.warmup_steps=1", "data.seq_len=64"]
    settings += ["data.batch_size=16", "max_steps=4", "checkpoint.every_steps=2", "prompt="]
    return ax.evolve(load_experiment("reward-model", settings), mesh={"fsdp": 1})


@pytest.fixture(scope="module")
def run(cfg, tmp_path_factory):
    directory = tmp_path_factory.mktemp("reward") / "run"
    trainer_on(cfg, 1).run(directory, quiet=True)
    return load_run(directory)


def chat(question, answer):
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]


def test_the_base_brings_all_but_the_head(cfg, trained):
    base = load_run(trained[0])
    first = trainer_on(cfg, 1).first_state().model
    jax.tree.map(np.testing.assert_array_equal, first["decoder"], base.state["decoder"])
    assert first["head"]["weight"].shape == (1, base.config.model.dim)


@pytest.mark.slow
def test_as_a_reward_of_completions_it_is_the_run_s_own_and_what_is_too_long_fails_alone(run):
    pool = RewardPool({"model": ModelReward.Config(path=str(run.directory))})
    pool.check()
    asked = [ScoreRequest("7?", answer, {}) for answer in ("xx", "x" * 90, "yy")]
    found = [one["model"] for one in pool.score(asked)]
    wanted = reward_of(run, [chat("7?", "xx"), chat("7?", "yy")])
    np.testing.assert_allclose([found[0], found[2]], wanted, rtol=1e-5)
    assert np.isnan(found[1])
    in_chat = ScoreRequest("<rendered>", "xx", {"messages": chat("7?", "xx")[:1]})
    assert pool.score([in_chat])[0]["model"] == pytest.approx(found[0], rel=1e-5)


def test_chosen_answers_get_higher_rewards(run):
    metrics = run.evaluate()
    assert metrics["reward_accuracy"] == 1.0
    found = reward_of(run, [chat("7?", "xx"), chat("7?", "yy")])
    assert found[0] > found[1]


def test_rewards_do_not_depend_on_what_else_is_asked(run):
    chats = [chat("1?", "x" * n) for n in (9, 1, 4, 2, 8)]
    together = reward_of(run, chats, batch_size=2)
    alone = [reward_of(run, [one])[0] for one in chats]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)


def test_a_reward_is_that_of_the_text_that_was_trained_on(run):
    (batch,) = (batch for batch in run.trainer.data.validation())
    tokens, mask = (jnp.asarray(batch[name].reshape(-1, 64)) for name in ("tokens", "token_mask"))
    wanted = np.asarray(rewards(run.model, run.state, tokens, whole_rows(tokens, mask)))
    for row, is_real, reward in zip(tokens, mask, wanted, strict=True):
        if text := run.trainer.data.tokenizer.decode(row[is_real]):
            question, answer = text.removeprefix("<user>\n").split("\n<assistant>\n")
            found = reward_of(run, [chat(question, answer.strip())])
            np.testing.assert_allclose(found, [reward], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_run_that_resumes_ends_as_one_without_a_stop(cfg, run, tmp_path):
    trainer_on(ax.evolve(cfg, max_steps=4), 1).run(tmp_path / "run", quiet=True)
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True, from_step=2)
    jax.tree.map(np.testing.assert_array_equal, load_run(tmp_path / "run").state, run.state)


def test_a_reward_model_is_asked_for_no_text(run):
    with pytest.raises(ConfigError, match="its head gives one number"):
        open_model(run.directory)
    with pytest.raises(ConfigError, match="its head gives one number"):
        run.generate("a")


def test_a_model_of_text_gives_no_rewards(trained):
    with pytest.raises(ConfigError, match="the run gives no rewards") as caught:
        reward_of(load_run(trained[0]), [chat("1?", "xx")])
    assert "axcore train reward-model" in caught.value.hint


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("text", "expected a list of messages"),
        (chat("1?", "x" * 80), "tokens, and the run was trained on 64"),
        (chat("1?", "x")[:1], "no message of 'assistant'"),
    ],
)
def test_a_bad_conversation_is_named(run, bad, what):
    with pytest.raises(DataError, match=what) as caught:
        reward_of(run, [chat("1?", "xx"), bad])
    assert caught.value.where == "conversations[1]"
