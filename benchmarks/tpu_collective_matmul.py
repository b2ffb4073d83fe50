"""Collectives of tensor parallelism on TPUs: under products, or waited for.

    pip install "axl-tpu[aot]"
    python benchmarks/tpu_collective_matmul.py
    python benchmarks/tpu_collective_matmul.py --only "split by width"

compiles a step of `scaling.py`'s model of 128B parameters, whose layers are split over 16 chips of
v5e, with 8 of its 64 layers: with hidden vectors between layers whole on each of those chips, or
split over them, each with the options that axl-tpu asks for and with libtpu's collective matmuls,
in which a product's parts are multiplied while others are on their way. It writes
`results/tpu_collective_matmul.json`, what a step waits for collectives and what it takes in all,
and the table of docs/parallelism.md. Nothing here has run on a chip.
"""

from pathlib import Path
from typing import Any

import attrs
from _apart import record_cases
from scaling import ALL_SERIES
from tpu_compile_time import compiled_figures

from axcore.config import update_config
from axcore.plugins import Hardware
from axcore.report.table import markdown_table, page_with_table
from axcore.trainer import resolve

PAGE = Path(__file__).parents[1] / "docs" / "parallelism.md"
BEGIN, END = "<!-- table: tpu_collective_matmul.py -->\n", "<!-- end of table -->"
TARGET, LAYERS = "tpu-v5e-256", 8
SERIES = next(series for series in ALL_SERIES if series.name == "128B")
GATHERS, SUMS = (
    f"xla_tpu_{one}_collective_matmul_mode" for one in ("all_gather", "reduce_scatter")
)
OF_GATHERS = {GATHERS: "post_spmd"}
OF_BOTH = {**OF_GATHERS, SUMS: "post_spmd"}
CASES: dict[str, tuple[bool, dict[str, str]]] = {
    "whole": (False, {}),
    "whole, collective matmuls": (False, OF_BOTH),
    "split by width": (True, {}),
    "split by width, collective matmuls": (True, OF_BOTH),
    "split by width, collective matmuls of gathers": (True, OF_GATHERS),
}
"""By name, whether hidden vectors are split, and what else libtpu is asked."""


def measure(name: str) -> dict[str, Any]:
    """Return the figures of a case, in this process."""
    splits_width, options = CASES[name]
    hardware = Hardware.parse(TARGET)
    config = attrs.evolve(SERIES, splits_width=splits_width).config(hardware.chips)
    config = update_config(config, {"model.decoder.stack.num_layers": LAYERS})
    return compiled_figures(resolve(config, hardware), options)


def write_page(figures: dict[str, Any]) -> None:
    """Write the table of docs/parallelism.md."""
    rows = [
        (
            name,
            f"{one['temporaries_gib']:.1f} GiB",
            f"{one['waits_s']:.2f} s",
            f"{one['predicted_step_s']:.2f} s",
        )
        for name, one in figures.items()
    ]
    header = ("hidden vectors between layers", "temporaries", "waits", "step")
    table = markdown_table(header, rows) + "\n"
    page = page_with_table(PAGE.read_text(encoding="utf-8"), table, BEGIN, END)
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    summary = (__doc__ or "").splitlines()[0]
    write_page(
        record_cases("tpu_collective_matmul", tuple(CASES), measure, target=TARGET, summary=summary)
    )


if __name__ == "__main__":
    main()
