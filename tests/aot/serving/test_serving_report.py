"""What a report of a serving model follows from: which pages fit, what bounds a call."""

import attrs
import pytest

from axcore.aot import ServingLoad, ServingReport, serving_report_from_json, serving_text
from axcore.aot.serving.report import CallCost
from axcore.errors import ConfigError

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
    compile_s=1.0,
)

REPORT = ServingReport(
    experiment="tiny",
    target="acme-x1-4",
    chips=4,
    compiler="acme",
    prompt=64,
    context=128,
    page_size=16,
    capacity_bytes=100 * MIB,
    weight_bytes=40 * MIB,
    page_bytes=5 * MIB,
    row_bytes=MIB,
    prefill=attrs.evolve(DECODE, rows=1, tokens=64, temporaries_bytes=7 * MIB),
    decode=(DECODE,),
)


def test_pages_fit_beside_weights_all_programs_rows_and_the_largest_temporaries():
    spare = 100 - 40 - 2 * 3 - 7 - 8 * 1
    assert REPORT.spare_bytes == spare * MIB
    assert REPORT.pages_that_fit == spare // 5


def test_no_page_fits_where_weights_alone_do_not():
    full = attrs.evolve(REPORT, weight_bytes=99 * MIB)
    assert full.pages_that_fit == 0
    assert "does not fit: 20 MiB too much" in serving_text(full)


def test_a_model_without_pages_has_no_number_of_them():
    assert attrs.evolve(REPORT, page_bytes=0).pages_that_fit is None
    assert attrs.evolve(REPORT, capacity_bytes=None).pages_that_fit is None


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


@pytest.mark.parametrize(
    ("load", "text"),
    [
        ({"rows": ()}, r"rows \(\)"),
        ({"rows": (0,)}, "expected 1 or more of each"),
        ({"prompt": 65, "context": 64}, "prompt of 65 tokens does not fit a context of 64"),
    ],
)
def test_loads_without_sense_are_refused(load, text):
    with pytest.raises(ConfigError, match=text):
        ServingLoad(**load)
