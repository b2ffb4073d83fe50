"""In which pieces texts are read, and how many at once: by what a call costs on some hardware."""

import numpy as np
import pytest

from axcore.config import evolve
from axcore.inference import EngineConfig
from axcore.inference.config import batch_buckets
from axcore.inference.schedule import SchedulerConfig
from axcore.plugins import Hardware

HOST, CHIP = "cpu-1", "tpu-v5p-8"


def limits_on(hardware, **changes):
    shapes = batch_buckets(
        evolve(EngineConfig(max_length=4096), **changes), Hardware.parse(hardware)
    )
    return SchedulerConfig(
        num_slots=16,
        max_length=4096,
        page_size=16,
        num_pages=4096,
        num_decode_steps=8,
        **shapes.limits,
    )


def pieces(limits, missing):
    found = []
    while missing > 0:
        found.append(limits.piece_length(missing))
        missing -= found[-1]
    return found


@pytest.mark.parametrize(
    ("hardware", "missing", "wanted"),
    [
        (HOST, 275, [256, 32]),
        (CHIP, 275, [512]),
        (HOST, 256, [256]),
        (HOST, 250, [256]),
        (HOST, 1, [16]),
        (HOST, 1300, [512, 512, 256, 32]),
        (CHIP, 1300, [512, 512, 512]),
    ],
)
def test_a_text_is_padded_or_cut_by_what_a_call_costs(hardware, missing, wanted):
    assert pieces(limits_on(hardware), missing) == wanted


@pytest.mark.parametrize("hardware", [HOST, CHIP])
def test_no_other_pieces_take_less_time(hardware):
    limits = limits_on(hardware, max_num_batched_tokens=128)
    min_kind = {0: 0}
    for missing in range(1, 200):
        min_kind[missing] = min(
            length + limits.tokens_of_call + min_kind[max(0, missing - length)]
            for length in limits.chunk_lengths
        )
        found = pieces(limits, missing)
        assert sum(found) + limits.tokens_of_call * len(found) == min_kind[missing], missing


def test_texts_are_read_together_where_that_reads_more_in_a_time():
    """A program of 4 rows of 64 tokens costs as much for two texts as for four."""
    texts = np.full(4, 60)
    assert limits_on(HOST).num_read(64, texts[:2]) == 1
    assert limits_on(HOST).num_read(64, texts) == 4
    assert limits_on(CHIP).num_read(64, texts[:1]) == 1
    assert limits_on(CHIP).num_read(64, texts[:2]) == 2
