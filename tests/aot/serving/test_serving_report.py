"""What a report of a serving model follows from: which pages fit, what bounds a call."""

import json
import math

import attrs
import jax
import pytest

from axcore.aot import ServingLoad, ServingReport, serving_report_from_json, serving_text
from axcore.aot.serving.measure import program_bytes
from axcore.aot.serving.report import CallCost, FirstToken, shared_evenly, sum_of_calls
from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny
from axcore.inference import EngineConfig
from axcore.inference.speculation import NGramLookup
from axcore.module import count_params

MIB = 2**20

DECODE = CallCost(
    rows=8,
    tokens=1,
    seconds=4e-3,
    compiled_s=4e-3,
    moved_s=3e-3,
    floor_s=2e-3,
    products_s=1e-4,
    waiting_s=1e-5,
    num_collectives=3,
    num_instructions=100,
    temporaries_bytes=2 * MIB,
    program_bytes=3 * MIB,
    copied_bytes=0,
    unknown_loops=0,
)

READ = attrs.evolve(DECODE, rows=1, tokens=64, temporaries_bytes=7 * MIB)

REPORT = ServingReport(
    experiment="tiny",
    target="acme-x1-4",
    chips=4,
    compiler="acme",
    prompt=64,
    context=30,
    max_num_seqs=8,
    max_num_batched_tokens=128,
    num_decode_steps=4,
    page_size=16,
    num_pages=6,
    num_programs=9,
    num_compiled=2,
    compile_s=1.0,
    capacity_bytes=100 * MIB,
    weight_bytes=40 * MIB,
    drawing_bytes=MIB,
    program_bytes=6 * MIB,
    temporaries_bytes=7 * MIB,
    page_bytes=2 * MIB,
    row_bytes=MIB,
    first=(FirstToken(beside=7, pieces=(32, 16, 16), waits_s=8e-3, cost=READ),),
    decode=(DECODE,),
)


def test_pages_fit_beside_weights_all_programs_rows_and_the_largest_temporaries():
    spare = 100 - 40 - 1 - 6 - 7 - 8 * 1
    assert REPORT.spare_bytes == (spare - 6 * 2) * MIB
    assert REPORT.pages_that_fit == spare // 2
    assert "fits: 6 pages, of 16 wanted; memory fits 19" in serving_text(REPORT)
    whole = attrs.evolve(REPORT, num_pages=16)
    assert "fits: 16 pages, all that its rows can need" in serving_text(whole)


def test_an_engine_does_not_fit_whose_programs_need_what_its_pages_take():
    full = attrs.evolve(REPORT, temporaries_bytes=34 * MIB)
    assert full.pages_that_fit == 5
    assert "does not fit: 1 MiB too much" in serving_text(full)


def test_a_model_without_pages_has_no_number_of_them():
    assert attrs.evolve(REPORT, page_bytes=0).pages_that_fit is None
    assert attrs.evolve(REPORT, capacity_bytes=None).pages_that_fit is None


def test_programs_that_were_not_compiled_take_as_much_as_the_largest_of_their_kind():
    large = attrs.evolve(DECODE, program_bytes=5 * MIB)
    costs = {
        ("multi_step_decode", 1, 8, "greedy"): DECODE,
        ("multi_step_decode", 4, 8, "greedy"): large,
    }
    costs |= {("prefill", 1, 64): attrs.evolve(READ, program_bytes=7 * MIB)}
    keys = (*costs, ("prefill", 1, 16), ("score_prompt", 16), ("decode", 4), ("copy_page",))
    assert program_bytes(keys, costs) == (3 + 5 + 7 + 7 + 7 + 5 + 0) * MIB


def test_calls_add_up_and_a_call_of_several_tokens_is_shared_by_them():
    both = sum_of_calls([READ, DECODE], rows=1, tokens=64)
    assert (both.seconds, both.num_instructions, both.rows, both.tokens) == (8e-3, 200, 1, 64)
    assert both.temporaries_bytes == 7 * MIB
    assert sum_of_calls([READ, attrs.evolve(READ, seconds=None)], rows=1).seconds is None
    one = shared_evenly(attrs.evolve(DECODE, tokens=4), 4)
    assert (one.seconds, one.tokens, one.num_instructions) == (1e-3, 1, 25)


def test_text_says_in_which_pieces_a_prompt_is_read_and_how_long_it_may_wait():
    [line] = [line for line in serving_text(REPORT).splitlines() if line.startswith("7 ")]
    assert all(part in line for part in ("1 x 32 + 2 x 16", " 4 ms", " 12 ms"))


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [
        ({}, "bandwidth"),
        ({"products_s": 3.5e-3}, "products"),
        ({"waiting_s": 3.5e-3}, "collectives"),
        ({"moved_s": 1e-3}, "instructions"),
        ({"seconds": None}, "not known"),
    ],
)
def test_a_call_is_bound_by_what_takes_half_of_it_or_more(seconds, bound):
    assert attrs.evolve(DECODE, **seconds).bound_by == bound


def test_every_row_gets_a_token_a_call():
    assert DECODE.tokens_per_s == pytest.approx(8 / 4e-3)
    assert DECODE.over_floor == pytest.approx(2.0)


def test_reports_survive_json():
    assert serving_report_from_json(REPORT.to_json()) == REPORT


def test_text_says_where_caches_are_copied():
    assert "not written in place" not in serving_text(REPORT)
    copying = attrs.evolve(REPORT, decode=(attrs.evolve(DECODE, copied_bytes=6 * MIB),))
    assert "caches are not written in place: 6 MiB are copied" in serving_text(copying)


ENGINE = EngineConfig(max_length=64)


@pytest.mark.parametrize(
    ("load", "text"),
    [
        ({"engine": ENGINE, "prompt": 64}, "prompt of 64 tokens .* do not fit a context of 64"),
        ({"engine": ENGINE, "prompt": 0}, "prompt of 0 tokens"),
        ({"engine": EngineConfig()}, "context of None"),
        ({"engine": evolve(ENGINE, speculation=NGramLookup()), "prompt": 8}, "tokens are accepted"),
    ],
)
def test_loads_without_sense_are_refused(load, text):
    with pytest.raises(ConfigError, match=text):
        ServingLoad(**load)


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
        (("--serve", "--rows", "one"), "'one' is not a list of numbers"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(aot, given, text):
    ran = aot("tiny", "--target", "cpu-2", *given)
    assert ran.exit_code == 2
    assert text in ran.stderr
