"""`--set data.rewards=...`: names, functions of the user, and what is wrong with a text."""

import pytest

from axcore.config import apply_overrides, from_json, to_json
from axcore.errors import ConfigError, PluginError
from axcore.rewards import ExactMatch, NumericAnswer, PythonReward, RegexMatch
from axcore.rollouts.experiments import grpo_reverse


def rewards(text):
    return dict(apply_overrides(grpo_reverse(), [text]).data.rewards)


def test_names_replace_the_rewards_of_the_experiment():
    text = "data.rewards=numeric(tolerance=0.5), regex(pattern='a,b', weight=0.1)"
    assert rewards(text) == {
        "numeric": NumericAnswer.Config(tolerance=0.5),
        "regex": RegexMatch.Config(pattern="a,b", weight=0.1),
    }
    assert rewards('data.rewards={"x": "exact_match"}') == {"x": ExactMatch.Config()}


def test_one_is_set_or_changed_by_its_key():
    assert rewards('data.rewards["new"]=numeric')["new"] == NumericAnswer.Config()
    assert rewards('data.rewards["exact"].weight=0.5')["exact"].weight == 0.5


def test_a_function_of_a_file_is_one_that_no_config_file_may_name(tmp_path):
    path = tmp_path / "reward_of_a_named_test.py"
    path.write_text("def score(prompt, completion, fields):\n    return 1\n")
    cfg = apply_overrides(grpo_reverse(), [f"data.rewards={path}:score(weight=2)"])
    made = cfg.data.rewards["score"]
    assert isinstance(made, PythonReward.Config)
    assert (made.weight, made.fn("", "", {})) == (2, 1)
    with pytest.raises(ConfigError, match="not a function that a config file may name"):
        from_json(to_json(cfg))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("exac_match", "did you mean 'exact_match'"),
        ("numeric, numeric(weight=2)", "named twice"),
        ("regex(pattern=a", "is missing"),
        ("regex(patern=a)", "did you mean 'pattern'"),
        ("no_such_file.py:score", "there is no file"),
        ("json:dump_it", "json has no function 'dump_it'"),
        ('{"a": 1}', "is not a mapping of names"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(text, error):
    with pytest.raises((ConfigError, PluginError)) as caught:
        rewards(f"data.rewards={text}")
    assert error in str(caught.value)


def test_a_file_that_another_module_has_the_name_of_is_refused(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("def score(*_):\n    return 1\n")
    with pytest.raises(ConfigError, match="cannot be imported as 'json'"):
        rewards(f"data.rewards={path}:score")
