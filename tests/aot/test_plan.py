"""`axcore plan`: which hardware trains an experiment, by fit, cost and hours."""

import json

import attrs
import pytest
from click.testing import CliRunner

from axcore.aot import Attempt, Report
from axcore.aot.plan import (
    Candidate,
    candidate_for,
    checked_prices,
    plan_json,
    plan_text,
    price_of,
    ranked,
)
from axcore.aot.report.report import Memory, StepTime
from axcore.cli.plan import plan as plan_command
from axcore.errors import AotError, ConfigError
from axcore.experiments.named import load_resolved
from axcore.plugins import Hardware

GIB = 2**30


def report(step_s=1.0, *, needs=1, has=2):
    memory = Memory(
        capacity_bytes=has * GIB,
        peak_bytes=needs * GIB,
        parameters_bytes=0,
        optimizer_bytes=0,
        batch_bytes=0,
        temporaries_bytes=0,
    )
    time = StepTime(
        source="roofline",
        cycles=0,
        compute_s=step_s,
        kernels_s=0.0,
        collectives_s=0.0,
        step_s=step_s,
        mfu=0.5,
        formula="6 N",
    )
    return Report(
        experiment="small",
        target="acme-4",
        chips=4,
        compiler="acme",
        batch={"rows": 8, "tokens": 128},
        fits=memory.fits,
        memory=memory,
        time=None if step_s is None else time,
        lower_s=0.0,
        compile_s=0.0,
    )


def candidate(name, step_s=1.0, price=None, **values):
    made = report(step_s, **values)
    return Candidate(target=name, chips=4, steps=3600, price=price, report=made)


def names(*candidates):
    return [one.target for one in ranked(candidates)]


def test_a_run_costs_its_hours_on_all_chips():
    one = candidate("a", step_s=2.0, price=1.5)
    assert (one.hours, one.cost) == (2.0, 2.0 * 4 * 1.5)
    assert candidate("a").cost is None


def test_the_cheapest_that_fits_comes_first_where_all_have_prices():
    fast, cheap = candidate("fast", 1.0, 9.0), candidate("cheap", 2.0, 1.0)
    assert names(fast, cheap) == ["cheap", "fast"]


def test_the_soonest_done_comes_first_where_a_price_is_missing():
    fast, cheap = candidate("fast", 1.0), candidate("cheap", 2.0, 1.0)
    assert names(cheap, fast) == ["fast", "cheap"]


def test_what_does_not_fit_comes_last_and_has_no_time():
    small = candidate("small", 0.1, 0.1, needs=3)
    broken = Candidate(target="broken", chips=1, steps=0, reason="no compiler")
    assert names(broken, small, candidate("big", 9.0, 9.0)) == ["big", "broken", "small"]
    assert (small.step_s, small.cost) == (None, None)


def resolved_for(hardware):
    return load_resolved("tiny", hardware=hardware)


def test_steps_are_those_of_a_number_of_tokens_or_of_the_experiment():
    hardware = Hardware.parse("cpu-4")
    own = {"compile_one": lambda resolved: report(), "price": 2.0}
    assert candidate_for(hardware, resolved_for, tokens=1025, **own).steps == 2
    mine = candidate_for(hardware, resolved_for, tokens=None, **own)
    assert mine.steps == resolved_for(hardware).config.max_steps
    assert (mine.chips, mine.price) == (4, 2.0)
    assert "fsdp" in mine.rule


def test_a_target_that_cannot_be_compiled_for_takes_nothing_from_the_others():
    def refuses(resolved):
        raise AotError("the compiler is not installed", where="acme")

    found = candidate_for(
        Hardware.parse("cpu-4"), resolved_for, compile_one=refuses, tokens=None, price=None
    )
    assert (found.fits, found.state) == (False, "the compiler is not installed")


def test_what_a_search_found_is_what_counts():
    tried = (
        Attempt((), report(needs=3)),
        Attempt(("remat(policy=full)",), report(3.0)),
        Attempt(("remat(policy=minimal)",), report(2.0)),
    )
    found = candidate_for(
        Hardware.parse("cpu-4"),
        resolved_for,
        compile_one=lambda resolved: report(),
        search=lambda resolved: tried,
        tokens=1024,
        price=None,
    )
    assert (found.step_s, found.changes) == (2.0, ("remat(policy=minimal)",))
    assert '--modify "remat(policy=minimal)"' in plan_text([found])


def test_the_first_pattern_that_matches_has_the_price():
    prices = checked_prices({"acme-4": 3, "acme-*": 1.5}, ["acme-4", "acme-8"], "prices.yaml")
    assert [price_of(prices, one) for one in ("acme-4", "acme-8", "other")] == [3.0, 1.5, None]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1], "prices are not a mapping"),
        ({"acme-4": "2"}, "the price of 'acme-4' is '2', and not a number above 0"),
        ({"acme-4": True}, "is True, and not a number above 0"),
        ({"acme-4": 0}, "is 0, and not a number above 0"),
        ({"acme-4": float("nan")}, "is nan, and not a number above 0"),
        ({"acne-*": 2}, "'acne-*' matches no target"),
    ],
)
def test_wrong_prices_are_refused(values, text):
    with pytest.raises(ConfigError) as found:
        checked_prices(values, ["acme-4"], "prices.yaml")
    assert text in found.value.what
    assert found.value.where == "prices.yaml"


def test_columns_without_a_figure_are_left_out():
    shown = plan_text([attrs.evolve(candidate("a"), price=None)])
    assert "COST" not in shown
    assert "HOURS" in shown
    assert shown.splitlines()[1].split()[:3] == ["a", "4", "1"]


def test_json_has_what_is_not_known_as_null():
    [one] = json.loads(plan_json([candidate("a")]))
    assert (one["target"], one["fits"], one["hours"], one["cost"]) == ("a", True, 1.0, None)


@pytest.mark.slow
def test_the_command_compares_targets(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("cpu-*: 0.1\n")
    options = ["--targets", "cpu-2 cpu-3", "--prices", str(prices), "--tokens", "2048", "--json"]
    sets = ["--set", "model.dim=16", "--set", "model.decoder.stack.num_layers=1"]
    ran = CliRunner().invoke(plan_command, ["tiny", *options, *sets])
    assert ran.exit_code == 0, ran.output
    two, three = json.loads(ran.stdout)
    assert (two["target"], two["steps"], two["chip_hour"]) == ("cpu-2", 2, 0.1)
    assert two["peak_bytes"] > 0
    assert (three["target"], three["fits"]) == ("cpu-3", False)
    assert "3" in three["state"]


def test_a_price_file_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("cpu-2,1\n")
    ran = CliRunner().invoke(plan_command, ["tiny", "--targets", "cpu-2", "--prices", str(file)])
    assert isinstance(ran.exception, ConfigError)
    assert "'.csv'" in ran.exception.what
