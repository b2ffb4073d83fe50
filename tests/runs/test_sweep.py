"""Sweeps: what is varied, what each trial is called, and what came of them."""

import json

import pytest

from axcore.errors import ConfigError
from axcore.runs.sweep import Axis, Result, Sweep, Trial, grouped, parse_axis


def sweep_of(tmp_path, *axes, **more):
    arguments = more.pop("arguments", ())
    return Sweep(directory=tmp_path, experiment="tiny", arguments=arguments, axes=axes, **more)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1,2", ("1", "2")),
        ("a=[1,2],none", ("[1,2]", "none")),
        ("a=1e-4..1e-2:3", ("1e-4", "0.001", "1e-2")),
        ("a=8..64:4", ("8", "16", "32", "64")),
        ("a=1e-4..1.2345e-2:3", ("1e-4", "0.00111", "1.2345e-2")),
        ("a='x,y',z", ("'x,y'", "z")),
    ],
)
def test_values_are_listed_or_spaced_by_equal_ratios(text, values):
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    "text", ["a", "a=", "a=1..0:3", "a=1..2:1", "a=x..y:2", "a=0..1:2", "a=1,,2"]
)
def test_what_names_no_values_is_refused_with_an_example(text):
    with pytest.raises(ConfigError) as caught:
        parse_axis(text)
    assert "PATH=V1,V2" in caught.value.hint or "1e-4..1e-2:5" in caught.value.hint


def test_trials_are_all_combinations_and_their_folders_are_plain_names(tmp_path):
    axes = (parse_axis("learner.schedule.peak=1e-3,1e-2"), Axis("--modify", "", ("none", "f(x=1)")))
    names = [trial.name for trial in sweep_of(tmp_path, *axes).trials()]
    assert names == [
        "peak-1e-3_modify-none",
        "peak-1e-3_modify-f-x-1",
        "peak-1e-2_modify-none",
        "peak-1e-2_modify-f-x-1",
    ]


def test_axes_of_one_last_name_are_told_apart_by_their_paths(tmp_path):
    axes = (parse_axis("model.a.rate=1"), parse_axis("model.b.rate=2"))
    assert [trial.name for trial in sweep_of(tmp_path, *axes).trials()] == ["a.rate-1_b.rate-2"]


def test_a_random_part_is_the_same_each_time_and_none_twice(tmp_path):
    sweep = sweep_of(tmp_path, parse_axis("a=1..99:40"), max_trials=7)
    assert sweep.trials() == sweep.trials()
    assert len(set(sweep.trials())) == 7


def test_a_modifier_called_none_changes_nothing(tmp_path):
    sweep = sweep_of(tmp_path, Axis("--modify", "", ("none", "lora")))
    without, with_it = (sweep.training(trial) for trial in sweep.trials())
    assert "--modify" not in without
    assert with_it[-2:] == ["--modify", "lora"]


def test_a_folder_takes_more_values_but_no_other_experiment(tmp_path):
    sweep_of(tmp_path, parse_axis("a=1")).save("c")
    sweep_of(tmp_path, parse_axis("a=1,2")).save("c")
    assert list(json.loads((tmp_path / "sweep.json").read_text())["trials"]) == ["a-1", "a-2"]
    with pytest.raises(ConfigError, match="max_steps"):
        sweep_of(tmp_path, parse_axis("a=1"), arguments=("--set", "max_steps=3")).save("c")


def test_a_run_of_the_same_name_that_is_another_one_is_refused(tmp_path):
    sweep_of(tmp_path, parse_axis("model.rate=1")).save("c")
    with pytest.raises(ConfigError, match="was trained with"):
        sweep_of(tmp_path, parse_axis("data.rate=1")).save("c")
    with pytest.raises(ConfigError, match="config of the sweep"):
        sweep_of(tmp_path, parse_axis("model.rate=1")).save("another")


@pytest.mark.parametrize(
    ("axes", "arguments"), [(("a=1", "a=2"), ()), (("a=1",), ("--set", "a=3"))]
)
def test_a_setting_that_is_named_twice_is_refused(tmp_path, axes, arguments):
    with pytest.raises(ConfigError, match="a is varied"):
        sweep_of(tmp_path, *map(parse_axis, axes), arguments=arguments).trials()


def test_long_values_have_short_names_of_their_own(tmp_path):
    axis = Axis("--modify", "", tuple("x" * 300 + end for end in "ab"))
    names = [trial.name for trial in sweep_of(tmp_path, axis).trials()]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 140


def test_a_seed_that_diverged_leaves_the_table_whole(tmp_path):
    sweep = sweep_of(tmp_path, parse_axis("a=1,2"), Axis("--set", "seed", ("0", "1")))
    results = [
        Result(one, "done", 9, float("nan") if one.values == ("1", "1") else 2.0)
        for one in sweep.trials()
    ]
    first, last = grouped(sweep, results, is_better_higher=False)
    assert (first.mean, last.standard_error) == (2.0, None)


def test_seeds_are_averaged_and_the_best_is_first(tmp_path):
    sweep = sweep_of(tmp_path, parse_axis("a=1,2"), Axis("--set", "seed", ("0", "1")))
    losses = {("1", "0"): 3.0, ("1", "1"): 5.0, ("2", "0"): 2.0, ("2", "1"): 2.0}
    results = [Result(trial, "done", 9, losses[trial.values]) for trial in sweep.trials()]
    first, second = grouped(sweep, results, is_better_higher=False)
    assert (first.values, first.mean, first.standard_error) == (("2",), 2.0, 0.0)
    assert (second.mean, second.standard_error) == (4.0, 1.0)
    assert grouped(sweep, results, is_better_higher=True)[0].values == ("1",)


def test_what_is_not_done_has_no_mean_and_comes_last(tmp_path):
    sweep = sweep_of(tmp_path, parse_axis("a=1,2"))
    values = {"1": ("stopped", 0.5), "2": ("done", 7.0)}
    results = [
        Result(one, values[one.values[0]][0], 1, values[one.values[0]][1]) for one in sweep.trials()
    ]
    first, last = grouped(sweep, results, is_better_higher=False)
    assert (first.values, last.mean) == (("2",), None)


def test_a_trial_that_never_began_is_not_started(tmp_path):
    sweep = sweep_of(tmp_path, parse_axis("a=1"))
    assert sweep.results("validation/loss") == [
        Result(Trial("a-1", ("1",)), "not started", None, None)
    ]
