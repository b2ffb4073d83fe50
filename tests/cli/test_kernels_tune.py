"""`axcore kernels tune`: it times candidates here, and writes the best into a table."""

import json
import sys

import attrs
import pytest

from axcore.cli.kernels_tune import _kernel, tune_kernel
from axcore.errors import KernelError
from axcore.ops.grouped_matmul.kernels import BLOCK_SIZES, RowTiles
from axcore.plugins import Hardware, Ref
from axcore.testing import contracts

KEY = "grouped_matmul/portable"


@pytest.fixture
def small(monkeypatch):
    """The contract, with small calls in place of those of models."""
    contract = contracts.GROUPED_MATMUL
    small = attrs.evolve(contract, model_cases=contract.cases[:2])
    monkeypatch.setattr(contracts, "GROUPED_MATMUL", small)


def tune(out, **options):
    tune_kernel(KEY, **{"names": (), "dtype": "float32", "repeats": 1, "out": out, **options})


@pytest.mark.slow
def test_best_candidate_of_each_kind_of_call_is_written_and_then_used(
    small, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "table.json"
    tune(out)
    text = capsys.readouterr().out
    assert text.count("max_rows 128") == 2
    assert f"wrote {out}" in text
    (entry,) = json.loads(out.read_text())["entries"]  # both calls are of one bucket
    assert entry["chip"] == "cpu"
    assert entry["bucket"] == {"dtype": "float32", "width": 16, "out_width": 32}
    assert entry["seconds"] <= entry["default"]["seconds"]
    monkeypatch.setattr(type(BLOCK_SIZES), "file", lambda table: out)
    (case, _) = contracts.GROUPED_MATMUL.model_cases
    used = BLOCK_SIZES.entry(case.abstract_call("float32"), Hardware.parse("cpu-8"))
    assert attrs.asdict(used.block_sizes) == entry["block_sizes"]
    assert used.source.startswith("tuned on cpu, ")


@pytest.mark.slow
def test_other_entries_of_a_table_stay_and_equal_ones_are_replaced(small, tmp_path):
    out = tmp_path / "table.json"
    tune(out, names=("even",))
    (first,) = json.loads(out.read_text())["entries"]
    out.write_text(json.dumps({"entries": [first, {**first, "chip": "acme-x1"}]}))
    tune(out, names=("even",))
    chips = [row["chip"] for row in json.loads(out.read_text())["entries"]]
    assert chips == ["cpu", "acme-x1"]


def test_candidates_that_do_not_compile_are_shown_with_the_reason(
    small, tmp_path, capsys, monkeypatch
):
    broken = attrs.evolve(BLOCK_SIZES, candidates=lambda call, hardware: [RowTiles(0)])
    module = sys.modules[
        "axcore.ops.grouped_matmul.kernels"
    ]  # axcore.ops has a function of the name
    monkeypatch.setattr(module, "BLOCK_SIZES", broken)
    tune(tmp_path / "table.json", names=("even",))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "max_rows 0" in line]
    assert "refused  ZeroDivisionError" in line


def test_calls_that_the_kernel_refuses_are_named_with_the_reason(
    small, tmp_path, capsys, monkeypatch
):
    def unsupported_reason(call):
        return None if call.shape("x")[0] == 48 else "takes 48 rows"

    record = attrs.evolve(_kernel(KEY), unsupported_reason=Ref("axcore.testing:unsupported_reason"))
    monkeypatch.setattr("axcore.testing.unsupported_reason", unsupported_reason, raising=False)
    monkeypatch.setattr("axcore.cli.kernels_tune._kernel", lambda key: record)
    tune(tmp_path / "table.json")
    assert "uneven is not timed: takes 48 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "names", "reason"),
    [
        ("grouped_matmul/portabel", (), r"no kernel 'grouped_matmul/portabel'; did you mean"),
        (
            "grouped_matmul/reference",
            (),
            r"has no block sizes.*tune one that has: .*grouped_matmul",
        ),
        (KEY, ("evn",), r"has no case 'evn'; did you mean 'even'"),
    ],
)
def test_what_cannot_be_tuned_is_one_clear_error(small, tmp_path, key, names, reason):
    with pytest.raises(KernelError, match=f"(?s){reason}"):
        tune_kernel(key, names=names, dtype="float32", repeats=1, out=tmp_path / "table.json")
    assert not list(tmp_path.iterdir())


def test_a_table_that_cannot_be_written_is_an_error_that_says_where_else(small, tmp_path):
    with pytest.raises(KernelError, match=r"(?s)cannot be written.*--out FILE"):
        tune(tmp_path / "none" / "table.json", names=("even",))
