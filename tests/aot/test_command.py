"""`axcore aot`, as a user runs it."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from axcore.aot import report_from_json, report_page, report_text
from axcore.experiments.tiny import tiny
from axcore.module import count_params


@pytest.mark.slow
def test_json_tells_memory_time_and_kernels(tiny_json):
    memory = tiny_json["memory"]
    params = count_params(tiny().model.build().param_specs())
    assert memory["parameters_bytes"] == pytest.approx(4 * params / 8, rel=0.01)
    assert memory["optimizer_bytes"] == pytest.approx(2 * memory["parameters_bytes"], rel=0.01)
    assert memory["temporaries_bytes"] > memory["activations_bytes"] > 0
    whole = sum(
        memory[name]
        for name in ("parameters_bytes", "optimizer_bytes", "batch_bytes", "temporaries_bytes")
    )
    assert memory["peak_bytes"] == whole
    assert tiny_json["mesh"] == {"fsdp": 8}
    assert any(line.startswith("attention: portable") for line in tiny_json["kernels"])


@pytest.mark.slow
def test_what_nobody_knows_of_a_host_is_null(tiny_json):
    assert tiny_json["fits"] is None
    assert tiny_json["predicted_step_s"] is None
    assert tiny_json["predicted_mfu"] is None


@pytest.mark.slow
def test_the_largest_buffers_have_the_modules_that_made_them(tiny_json):
    largest = tiny_json["memory"]["largest"]
    assert len(largest) == 10
    together = [one["nbytes"] * one["count"] for one in largest]
    assert together == sorted(together, reverse=True)
    kinds = [(one["shape"], one["module"], one["is_activation"]) for one in largest]
    assert len(set(kinds)) == 10
    kept = {one["module"] for one in largest if one["is_activation"]}
    assert "decoder.stack.layer.feed_forward" in kept


@pytest.mark.slow
def test_flops_of_products_are_those_of_the_model(tiny_json):
    """Forward and backward of a product are three products; the first layer's input has no more."""
    flops = {one["module"]: one["flops"] for one in tiny_json["modules"]}
    tokens_on_a_device = 8 * 128 / 8
    layers, dim, hidden = 4, 128, 384
    up = 3 * 2 * tokens_on_a_device * dim * hidden * layers
    assert flops["decoder.stack.layer.feed_forward.up.dot"] == up
    assert flops["decoder.stack.layer.feed_forward.down.dot"] == up


@pytest.mark.slow
def test_reports_survive_json(tiny_report):
    assert report_from_json(tiny_report.to_json()) == tiny_report


@pytest.mark.slow
def test_text_names_every_part(tiny_report):
    text = report_text(tiny_report)
    assert text.startswith("tiny on cpu-8: needs")
    for part in (
        "parameters",
        "LARGEST BUFFERS",
        "no times: how fast cpu-8 computes is not known",
        "all-gather",
        "kernels",
    ):
        assert part in text
    assert "unknown" not in text


@pytest.mark.slow
def test_the_page_is_whole_and_needs_nothing_else(tiny_report):
    page = report_page(tiny_report)
    ElementTree.fromstring(
        page.removeprefix("<!doctype html>").replace('<meta charset="utf-8">', "")
    )
    assert "tiny on cpu-8" in page
    assert "no times: how fast cpu-8 computes is not known" in page
    assert ">unknown<" not in page
    assert page.count("<svg") >= 2
    for outside in ("<script", "<link", "src=", "href=", "@import", "url("):
        assert outside not in page


@pytest.mark.slow
def test_unknown_targets_end_with_the_code_of_plugins(aot):
    ran = aot("tiny", "--target", "acme-x1-8")
    assert ran.exit_code == 4
    assert "no plugin knows target 'acme-x1-8'" in ran.stderr


@pytest.mark.slow
def test_a_missing_compiler_names_the_pip_install(aot):
    ran = aot("tiny", "--target", "tpu-v5e-8")
    if ran.exit_code == 0:
        pytest.skip("libtpu is installed")
    assert ran.exit_code == 4
    assert 'pip install "axl-tpu[aot]"' in ran.stderr


@pytest.mark.slow
def test_a_mesh_that_does_not_multiply_out_is_the_workers_own_error(aot):
    ran = aot("tiny", "--target", "cpu-8", "--set", "mesh={'fsdp': 3}")
    assert ran.exit_code == 3
    assert "mesh fsdp 3 needs 3 devices; there are 8" in ran.stderr


TOO_LARGE = ("tiny", "--target", "trainium-trn1-1", "--set", "data.batch_size=65536")


@pytest.mark.slow
def test_a_step_that_does_not_fit_is_reported_and_ends_with_its_code(aot):
    ran = aot(*TOO_LARGE, "--json")
    assert ran.exit_code == 11
    assert json.loads(ran.stdout)["fits"] is False
    assert "does not fit: needs" in ran.stderr
    assert "--search" in ran.stderr


@pytest.mark.slow
def test_limits_of_a_compiler_that_stands_in_are_told(aot):
    ran = aot("tiny", "--target", "trainium-trn2-2", "--json")
    told = json.loads(ran.stdout)
    assert "compiled by XLA for the host" in told["limits"]
    assert told["fits"] is True
    assert told["predicted_step_s"] > 0


@pytest.mark.long
def test_the_search_finds_what_fits(aot):
    ran = aot(*TOO_LARGE, "--search")
    assert ran.exit_code == 11
    assert "fastest that fits: " in ran.stdout
    assert "--modify" in ran.stderr
