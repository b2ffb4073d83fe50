"""The order of rows: every epoch holds each once; processes divide it and change nothing."""

import numpy as np
import pytest

from axcore.data.packing.batches import DataShard, train_order, validation_order
from axcore.data.packing.packing import PADDING_ROW
from axcore.errors import ConfigError


def epochs(order, num_rows, count):
    return [[order[e * num_rows + i] for i in range(num_rows)] for e in range(count)]


@pytest.mark.parametrize("num_rows", [1, 2, 7, 100])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_epoch_holds_each_row_once(num_rows, shuffle):
    order = train_order(num_rows, seed=3, shuffle=shuffle)
    for epoch in epochs(order, num_rows, 4):
        assert sorted(epoch) == list(range(num_rows))


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    """Grain shuffles epoch e with seed + e: seeds side by side must not share epochs."""
    seen = [
        tuple(epoch)
        for seed in range(4)
        for epoch in epochs(train_order(50, seed=seed, shuffle=True), 50, 4)
    ]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("seed", [-1, 2**40])
def test_any_integer_is_a_seed(seed):
    order = train_order(20, seed=seed, shuffle=True)
    again = train_order(20, seed=seed, shuffle=True)
    assert epochs(order, 20, 2) == epochs(again, 20, 2)


def test_without_shuffle_rows_come_in_order():
    assert epochs(train_order(5, seed=0, shuffle=False), 5, 2) == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("process_count", [1, 2, 3, 6])
def test_processes_divide_each_batch_into_contiguous_blocks(process_count):
    for step in (0, 1, 17):
        parts = [DataShard(12, i, process_count).places(step) for i in range(process_count)]
        assert len({len(part) for part in parts}) == 1
        assert np.concatenate(parts).tolist() == list(range(step * 12, step * 12 + 12))


def test_processes_that_cannot_share_a_batch_equally_are_refused():
    with pytest.raises(ConfigError, match="batch_size is 10, which 4 processes cannot share") as e:
        DataShard(10, 0, 4)
    assert e.value.hint == "batch_size=12"


@pytest.mark.parametrize("process_index", [-1, 2])
def test_a_process_that_does_not_exist_is_refused(process_index):
    with pytest.raises(ConfigError, match=f"process_index is {process_index}; .* expected 0 to 1"):
        DataShard(4, process_index, 2)


@pytest.mark.parametrize(("num_rows", "max_batches"), [(10, None), (8, None), (10, 9), (1, 1)])
def test_validation_order_holds_every_row_once_and_then_padding(num_rows, max_batches):
    order = list(validation_order(num_rows, batch_size=4, max_batches=max_batches))
    assert sorted(order[:num_rows]) == list(range(num_rows))
    assert len(order) % 4 == 0
    assert len(order) - num_rows < 4
    assert set(order[num_rows:]) <= {PADDING_ROW}


def test_a_limited_validation_order_is_a_sample_of_all_rows():
    order = list(validation_order(1000, batch_size=4, max_batches=25))
    assert len(set(order)) == 100
    assert min(order) < 50
    assert max(order) > 950
    assert list(order) == list(validation_order(1000, batch_size=4, max_batches=None))[:100]


def test_no_validation_rows_make_no_batches():
    assert list(validation_order(0, batch_size=4, max_batches=None)) == []
