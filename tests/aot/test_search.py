"""The search for the cheapest change that fits, over a compiler that is a formula."""

import pytest

from axcore.aot import Report, cheapest, search
from axcore.aot.report.report import Memory, StepTime
from axcore.aot.report.text import search_text
from axcore.config import evolve
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


def tried(capacity):
    return search(evolve(tiny(), mesh={"fsdp": -1}), CHIP, formula(capacity))


def test_what_fits_as_it_is_needs_no_change():
    attempts = tried(1000)
    assert [one.changes for one in attempts] == [()]
    assert cheapest(attempts) is attempts[0]


def test_among_what_fits_the_shortest_step_wins():
    attempts = tried(500)
    assert cheapest(attempts).changes == ("remat(policy=minimal)",)
    assert not any("accumulate" in " ".join(one.changes) for one in attempts)


def test_what_is_compiled_next_is_announced():
    said = []
    cfg = evolve(tiny(), mesh={"fsdp": -1})
    attempts = search(cfg, CHIP, formula(500), announce=said.append)
    assert said == ["as it is", *(one.changes[0] for one in attempts[1:])]


def test_parts_come_after_recomputation():
    attempts = tried(130)
    assert cheapest(attempts).changes == ("remat(policy=full)", "accumulate(factor=2)")
    assert "cheapest that fits: remat(policy=full) accumulate(factor=2)" in search_text(attempts)


def test_where_nothing_fits_everything_was_tried():
    attempts = tried(1)
    assert cheapest(attempts) is None
    assert any("mesh_shape" in " ".join(one.changes) for one in attempts)
    assert search_text(attempts).endswith("nothing that was tried fits")


def test_a_change_that_cannot_be_made_is_told_of_and_passed_over():
    def compiled(cfg):
        if cfg.num_micro_batches == 2:
            raise ShardingError("a batch of 8 rows does not divide into 2 parts")
        return formula(70)(cfg)

    attempts = search(evolve(tiny(), mesh={"fsdp": -1}), CHIP, compiled)
    assert cheapest(attempts).changes == ("remat(policy=full)", "accumulate(factor=4)")
    assert "cannot be made: a batch of 8 rows" in search_text(attempts)


@pytest.mark.parametrize("capacity", [900, 240, 60])
def test_the_cheapest_change_fits(capacity):
    assert cheapest(tried(capacity)).report.memory.peak_bytes <= capacity


def test_what_the_config_has_already_is_not_tried_again():
    cfg = with_changes(evolve(tiny(), mesh={"fsdp": -1}), ["remat(policy=full)"], CHIP)
    attempts = search(cfg, CHIP, formula(130))
    assert ("remat(policy=full)",) not in [one.changes for one in attempts]
    assert cheapest(attempts).changes == ("accumulate(factor=2)",)


def test_presets_that_keep_more_than_what_does_not_fit_are_not_tried():
    cfg = with_changes(evolve(tiny(), mesh={"fsdp": -1}), ["remat(policy=save_heads)"], CHIP)
    attempts = search(cfg, CHIP, formula(1))
    alone = [one.changes[0] for one in attempts if len(one.changes) == 1]
    assert alone == ["remat(policy=save_attention)", "remat(policy=full)"]
