"""The search for the fastest change that fits, over a compiler that is a formula."""

import json

import attrs
import pytest
from click.testing import CliRunner

from axcore.aot import Report, fastest, search
from axcore.aot.report.report import Memory, StepTime
from axcore.aot.report.text import search_text
from axcore.cli import aot as command
from axcore.config import evolve, update_config
from axcore.errors import ShardingError
from axcore.experiments.tiny import tiny
from axcore.modifiers import with_changes
from axcore.plugins import Hardware

CHIP = Hardware(family="cpu", chips=8)


def formula(capacity):
    """Returns a compiler of steps whose memory halves with recomputation and with parts."""

    def compiled(cfg):
        remat = cfg.model.decoder.stack.layer.remat
        recomputes = remat is not None and not remat.save
        needed = 1000 // cfg.num_micro_batches // (4 if recomputes else 2 if remat else 1)
        step_s = 1.0 + 0.3 * recomputes + 0.1 * (remat is not None)
        step_s += 0.01 * (cfg.num_micro_batches - 1)
        step_s -= 0.01 * len(remat.save if remat else ())
        memory = Memory(
            capacity_bytes=capacity,
            peak_bytes=needed,
            parameters_bytes=0,
            optimizer_bytes=0,
            batch_bytes=0,
            temporaries_bytes=needed,
        )
        time = StepTime(
            source="roofline",
            cycles=0,
            compute_s=step_s,
            kernels_s=0.0,
            collectives_s=0.0,
            step_s=step_s,
            mfu=None,
            formula="",
        )
        return Report(
            experiment="tiny",
            target="cpu-8",
            chips=8,
            compiler="formula",
            batch={"rows": 8, "tokens": 128},
            fits=memory.fits,
            memory=memory,
            time=time,
            lower_s=0.0,
            compile_s=0.0,
        )

    return compiled


def wide():
    """Returns eight rows for each device."""
    return update_config(tiny(), {"mesh": {"fsdp": -1}, "data.batch_size": 64})


def tried(capacity):
    return search(wide(), CHIP, formula(capacity))


def names(attempts):
    return [" ".join(one.changes) for one in attempts]


def test_what_is_fastest_as_it_is_stays_so():
    attempts = tried(1000)
    assert fastest(attempts) is attempts[0]
    assert attempts[0].changes == ()


def test_among_what_fits_the_shortest_step_wins():
    attempts = tried(500)
    assert fastest(attempts).changes == ("remat(policy=minimal)",)
    assert "fastest that fits: remat(policy=minimal)" in search_text(attempts)


def test_what_is_compiled_next_is_announced():
    said = []
    cfg = wide()
    attempts = search(cfg, CHIP, formula(500), announce=said.append)
    assert said == ["as it is", *names(attempts)[1:]]


def test_where_recomputation_is_not_enough_fewer_rows_run_at_once():
    attempts = tried(130)
    best = fastest(attempts)
    assert best.report.memory.peak_bytes <= 130
    assert any("micro_batches" in one for one in best.changes)


def test_memory_that_is_left_buys_speed():
    cfg = with_changes(wide(), ["remat(policy=full)"], CHIP)
    assert fastest(search(cfg, CHIP, formula(1000))).changes == ("remat(policy=none)",)
    assert fastest(search(cfg, CHIP, formula(500))).changes == ("remat(policy=minimal)",)


def test_settings_that_are_no_preset_are_left_for_a_preset_that_keeps_more():
    layer = with_changes(wide(), ["remat(policy=save_heads)"], CHIP).model.decoder.stack.layer
    own = evolve(layer.remat, save=layer.remat.save[:1])
    cfg = update_config(wide(), {"model.decoder.stack.layer.remat": own})
    assert fastest(search(cfg, CHIP, formula(500))).changes == ("remat(policy=minimal)",)


def test_rows_at_once_grow_where_that_is_faster():
    cfg = with_changes(wide(), ["accumulate(factor=4)"], CHIP)
    best = fastest(search(cfg, CHIP, formula(1000)))
    assert best.changes == ("micro_batches(rows_per_device=8)",)


def test_a_mesh_that_splits_width_is_found_where_nothing_else_fits():
    def compiled(cfg):
        return formula(1000 if cfg.mesh.get("model") == 4 else 1)(cfg)

    best = fastest(search(wide(), CHIP, compiled))
    assert "mesh_shape(mesh={'fsdp': -1, 'model': 4})" in best.changes


def test_no_setting_is_compiled_twice_and_no_more_than_allowed():
    attempts = search(wide(), CHIP, formula(1), max_compiles=7)
    assert len(attempts) == len(set(names(attempts))) == 7


def test_without_predicted_times_what_fits_is_left_as_it_is():
    def compiled(cfg):
        return without_time(formula(1000)(cfg))

    assert len(search(wide(), CHIP, compiled)) == 1


def without_time(report):
    return attrs.evolve(report, time=attrs.evolve(report.time, step_s=None))


def test_where_nothing_fits_everything_was_tried():
    attempts = tried(1)
    assert fastest(attempts) is None
    assert any("mesh_shape" in " ".join(one.changes) for one in attempts)
    assert search_text(attempts).endswith("nothing that was tried fits")


def test_a_change_that_cannot_be_made_is_told_of_and_passed_over():
    def compiled(cfg):
        if cfg.num_micro_batches == 2:
            raise ShardingError("a batch of 8 rows does not divide into 2 parts")
        return formula(70)(cfg)

    attempts = search(wide(), CHIP, compiled)
    assert fastest(attempts).report.memory.peak_bytes <= 70
    assert "cannot be made: a batch of 8 rows" in search_text(attempts)


@pytest.mark.parametrize("capacity", [900, 240, 60])
def test_the_fastest_change_fits(capacity):
    assert fastest(tried(capacity)).report.memory.peak_bytes <= capacity


def test_what_the_config_has_already_is_not_tried_again():
    cfg = with_changes(wide(), ["remat(policy=full)"], CHIP)
    assert "remat(policy=full)" not in names(search(cfg, CHIP, formula(130)))


def test_json_of_the_command_has_what_was_tried_and_chosen(monkeypatch):
    """The report is of the step as it is; with it are memory and time of every setting."""
    as_formula = lambda resolved, name, kept: formula(500)(resolved.config)  # noqa: E731
    monkeypatch.setattr(command, "compile_resolved", as_formula)
    ran = CliRunner().invoke(command.aot, ["tiny", "--target", "cpu-8", "--search", "--json"])
    told = json.loads(ran.stdout)
    found = told["search"]
    assert found["chosen"] == ["remat(policy=minimal)"]
    first, *others = found["attempts"]
    assert (first["changes"], first["fits"], first["peak_bytes"]) == ([], False, 1000)
    assert told["memory"]["peak_bytes"] == 1000
    by_change = {" ".join(one["changes"]): one for one in others}
    assert by_change["remat(policy=minimal)"]["fits"]
    assert by_change["remat(policy=minimal)"]["predicted_step_s"] < 1.4
