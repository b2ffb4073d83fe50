"""Block sizes: from the table where the chip and the kind of call were measured, else by rule."""

import json
import sys

import attrs
import jax.numpy as jnp
import pytest

from axcore.errors import KernelError
from axcore.ops import (
    BlockSizeTable,
    Call,
    KernelPolicy,
    choose_block_sizes,
    recording_plan,
    use_policy,
)
from axcore.ops.plan import power_of_two, write_rows
from axcore.plugins import Hardware

CALL = Call(op="fft", shapes=(("x", (8, 3000)),), dtypes=(("x", "float32"),))
CHIP = Hardware(family="acme", generation="x1", chips=4)


@attrs.frozen
class Blocks:
    rows: int
    columns: int


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of package `acme_tables`, which has no file yet."""
    (tmp_path / "acme_tables").mkdir()
    (tmp_path / "acme_tables" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield BlockSizeTable(
        kernel="fft/fast",
        package="acme_tables",
        default=lambda call, hardware: Blocks(128, 128),
        candidates=lambda call, hardware: (Blocks(256, 128),),
        bucket=lambda call: {"width": power_of_two(call.shape("x")[1])},
    )
    sys.modules.pop("acme_tables", None)


def row(**changes):
    tuned = {"rows": 256, "columns": 64}
    return {
        "chip": "acme-x1",
        "bucket": {"width": 4096},
        "block_sizes": tuned,
        "date": "2026-01-31",
        **changes,
    }


def test_without_a_file_the_rule_decides(table):
    entry = table.entry(CALL, CHIP)
    assert (entry.block_sizes, entry.source) == (Blocks(128, 128), "default")


def test_an_entry_serves_its_chip_in_any_number_and_its_bucket_alone(table):
    write_rows(table.file(), [row()])
    assert table.entry(CALL, CHIP).block_sizes == Blocks(256, 64)
    assert table.entry(CALL, CHIP.resized(64)).block_sizes == Blocks(256, 64)
    other_chip = attrs.evolve(CHIP, generation="x2")
    wide = attrs.evolve(CALL, shapes=(("x", (8, 5000)),))
    assert table.entry(CALL, other_chip).source == "default"
    assert table.entry(wide, CHIP).source == "default"


def test_plan_tells_the_block_sizes_and_where_they_are_from(table):
    write_rows(table.file(), [row()])
    with use_policy(KernelPolicy(hardware=CHIP)), recording_plan() as recording:
        assert choose_block_sizes(table, CALL) == choose_block_sizes(table, CALL) == Blocks(256, 64)
    assert str(recording.plan()) == (
        "block sizes of fft/fast: rows 256, columns 64 "
        "(tuned on acme-x1, 2026-01-31, for width=4096)"
    )


def test_forced_sizes_hold_for_their_kernel_and_until_the_end_of_the_context(table):
    other = attrs.evolve(table, kernel="fft/other")
    with table.forced(Blocks(8, 8)):
        assert table.entry(CALL, CHIP).block_sizes == Blocks(8, 8)
        assert other.entry(CALL, CHIP).block_sizes == Blocks(128, 128)
    assert table.entry(CALL, CHIP).block_sizes == Blocks(128, 128)


def test_sizes_of_two_kernels_are_forced_at_once_and_the_innermost_hold(table):
    other = attrs.evolve(table, kernel="fft/other")
    with table.forced(Blocks(8, 8)), other.forced(Blocks(16, 16)), table.forced(Blocks(4, 4)):
        assert table.entry(CALL, CHIP).block_sizes == Blocks(4, 4)
        assert other.entry(CALL, CHIP).block_sizes == Blocks(16, 16)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        (
            json.dumps({"entries": [{"chip": "acme-x1"}]}),
            "an entry lacks block_sizes, bucket, date",
        ),
        (
            json.dumps({"entries": [row(block_sizes={"rows": 8})]}),
            r"it has block_sizes \{'rows': 8\}, not",
        ),
        (
            json.dumps({"entries": [row(block_sizes={"rows": 8, "columns": 0.5})]}),
            "it has block_sizes",
        ),
    ],
)
def test_a_damaged_table_is_named_and_never_passed_over(table, text, reason):
    table.file().write_text(text)
    with pytest.raises(KernelError, match=reason) as caught:
        table.entry(CALL, CHIP)
    assert str(table.file()) in str(caught.value)


@pytest.mark.parametrize(("size", "bucket"), [(1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_sizes_are_rounded_up_to_powers_of_two(size, bucket):
    assert power_of_two(size) == bucket


@pytest.mark.slow
def test_portable_grouped_product_is_the_same_for_all_its_block_sizes():
    from axcore.ops import GroupedMatmulInputs
    from axcore.ops.grouped_matmul.kernels import BLOCK_SIZES, RowTiles, grouped_matmul_portable

    x, w = jnp.ones((40, 8)), jnp.arange(24.0).reshape(3, 8, 1)
    inputs = GroupedMatmulInputs(x, w, jnp.array([20, 0, 20]))
    plain = grouped_matmul_portable(inputs)
    with BLOCK_SIZES.forced(RowTiles(8)):
        assert (grouped_matmul_portable(inputs) == plain).all()
