"""`axcore aot --serve`, as a user runs it."""

import json
import math

import jax
import pytest

from axcore.experiments.tiny import tiny
from axcore.module import count_params

PAGE_SIZE = 8


@pytest.fixture(scope="module")
def serving_json(aot):
    """Returns the JSON of `tiny` that serves on two host devices."""
    load = ("--rows", "2", "--prompt", "16", "--context", "32")
    load += ("--set", f"engine.page_size={PAGE_SIZE}", "--set", "mesh={'model': 2}")
    ran = aot("tiny", "--serve", "--target", "cpu-2", *load, "--json")
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_weights_and_pages_are_those_of_the_model_split_over_the_devices(serving_json):
    cfg = tiny().model
    weights = 4 * count_params(cfg.build().param_specs())
    assert serving_json["mesh"] == {"model": 2}
    assert serving_json["weight_bytes"] == pytest.approx(weights / 2, rel=0.01)
    specs = jax.tree.leaves(cfg.build().param_specs(), is_leaf=lambda n: hasattr(n, "axes"))
    keys_and_values = sum(math.prod(one.shape) for one in specs if one.axes[-1] == "kv_heads")
    assert serving_json["page_bytes"] == 4 * PAGE_SIZE * keys_and_values / cfg.dim / 2


@pytest.mark.slow
def test_caches_are_written_in_place(serving_json):
    costs = [*serving_json["decode"], *(one["cost"] for one in serving_json["first"])]
    assert [one["copied_bytes"] for one in costs] == [0, 0, 0]


@pytest.mark.slow
def test_what_nobody_knows_of_a_host_is_null(serving_json):
    assert serving_json["pages_that_fit"] is None
    assert serving_json["decode"][0]["seconds"] is None


@pytest.mark.slow
def test_a_target_with_figures_has_times(aot):
    how = (
        "--prompt",
        "40",
        "--set",
        "engine.max_num_seqs=4",
        "--set",
        "engine.max_num_batched_tokens=32",
    )
    ran = aot("tiny", "--serve", "--target", "trainium-trn2-1", *how, "--json")
    assert ran.exit_code == 0, ran.stderr
    told = json.loads(ran.stdout)
    one, four = told["decode"]
    assert (one["rows"], four["rows"]) == (1, 4)
    assert four["seconds"] >= four["floor_s"] > one["floor_s"] > 0
    alone, *beside = told["first"]
    assert [alone["beside"], *(found["beside"] for found in beside)] == [0, 1, 3]
    assert (alone["pieces"], beside[-1]["pieces"]) == ([32, 16], [32, 16])
    assert alone["waits_s"] == 0 < beside[0]["waits_s"] < beside[-1]["waits_s"]
    assert alone["cost"]["products_s"] > one["products_s"] > 0
    assert told["pages_that_fit"] > told["num_pages"] == 4 * 128 / 16


@pytest.mark.slow
def test_memory_that_holds_no_longest_text_is_said_before_anything_is_compiled(aot):
    ran = aot("llama2-70b", "--serve", "--target", "trainium-trn2-1")
    assert ran.exit_code == 11
    assert "weights take" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--rows", "1"), "--rows only with --serve"),
        (("--serve", "--search"), "--serve does not go with --search"),
        (("--serve", "--rows", "one"), "'one' is no list of numbers"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(aot, given, text):
    ran = aot("tiny", "--target", "cpu-2", *given)
    assert ran.exit_code == 2
    assert text in ran.stderr
