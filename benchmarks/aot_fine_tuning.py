"""Memory of a fine-tuning step of a 7B model on one device: all weights, LoRA and QLoRA.

    pip install "axl-tpu[aot]" "axl-gpu[aot]"
    python benchmarks/aot_fine_tuning.py

compiles the train step of `llama2-7b` for one H100 and one v5e, one row of 4096 tokens with every
layer recomputed, writes `results/aot_fine_tuning.json` after each, and then the table of
docs/lora.md. With `--only`, rows that do not hold the text stay as they were recorded. Nothing here
has run on a chip.
"""

import argparse
from pathlib import Path
from typing import Any

import attrs
from _record import record, recorded, stamped

from axcore.aot import compile_resolved
from axcore.experiments.named import load_resolved
from axcore.plugins import Hardware
from axcore.report.table import markdown_table, page_with_table

COMMAND = "python benchmarks/aot_fine_tuning.py"
"""Remakes all rows; those of calls with `--only` were recorded one after the other."""

EXPERIMENT = "llama2-7b"
ROW = ("data.batch_size=1", "num_micro_batches=1")
NARROW = ("model.dtypes.param=bfloat16",)
WIDE = "replace(target=axcore.layers:{}, new=axcore.layers:PlainDot, at=model.**)"
FOR_TARGET = {
    "gpu-h100-1": (WIDE.format("Fp8Current"), "remat(policy=full)"),
    "tpu-v5e-1": (WIDE.format("Int8Dynamic"),),
}
"""Makes the step of both machines' mesh rules the same: full precision, layers recomputed."""

PAGE = Path(__file__).parents[1] / "docs" / "lora.md"
BEGIN = "<!-- table: aot_fine_tuning.py -->\n"
END = "<!-- end of table -->"


@attrs.frozen(kw_only=True)
class Method:
    """A way of fine-tuning: its name, and what it changes as `--set` and `--modify` take it."""

    name: str
    sets: tuple[str, ...] = NARROW
    changes: tuple[str, ...] = ()


METHODS = (
    Method(name="all weights, float32", sets=()),
    Method(name="all weights, bfloat16", changes=("low_precision_optimizer(format=bfloat16)",)),
    Method(name="LoRA", changes=("lora",)),
    Method(name="QLoRA, int8", changes=("lora", "quantized_base(format=int8)")),
    Method(name="QLoRA, NF4", changes=("lora", "quantized_base(format=nf4)")),
    Method(
        name="QLoRA, NF4, double_quant",
        changes=("lora", "quantized_base(format=nf4, double_quant=True)"),
    ),
)


def compiled(method: Method, target: str) -> dict[str, Any]:
    """Return what the compiler reports of a method on a machine, in GiB."""
    changes = (*FOR_TARGET[target], *method.changes)
    resolved = load_resolved(
        EXPERIMENT, ROW + method.sets, changes=changes, hardware=Hardware.parse(target)
    )
    report = compile_resolved(resolved, EXPERIMENT)
    memory = report.memory
    figures: dict[str, Any] = {"target": target, "method": method.name, "fits": report.fits}
    if memory:
        sizes = {
            "needed": memory.peak_bytes,
            "capacity": memory.capacity_bytes or 0,
            "parameters": memory.parameters_bytes,
            "optimizer": memory.optimizer_bytes,
            "temporaries": memory.temporaries_bytes,
        }
        figures |= {f"{name}_gib": round(size / 2**30, 2) for name, size in sizes.items()}
    return {
        **figures,
        "predicted_step_s": report.time.step_s if report.time else None,
        "compile_s": report.compile_s,
        "sets": [*ROW, *method.sets],
        "changes": list(changes),
    }


def table(figures: dict[str, Any]) -> str:
    """Return what each method needs on each machine, in GiB."""
    rows = [
        (
            one["target"],
            one["method"],
            f"{one['parameters_gib']:.1f}",
            f"{one['optimizer_gib']:.1f}",
            f"{one['needed_gib']:.1f} of {one['capacity_gib']:.1f}",
            "yes" if one["fits"] else f"lacks {one['needed_gib'] - one['capacity_gib']:.1f}",
        )
        for one in figures.values()
    ]
    header = ("target", "trained", "parameters", "optimizer", "needs", "fits")
    return markdown_table(header, rows) + "\n"


def page_with_figures(page: str) -> str:
    """Return the page with the table as the results have it."""
    return page_with_table(page, table(recorded("aot_fine_tuning")), BEGIN, END)


def main() -> None:
    """Compile, records, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="rows whose name holds this text")
    wanted = parser.parse_args().only
    figures = recorded("aot_fine_tuning") if wanted else {}
    cases = {f"{one.name} on {target}": (one, target) for target in FOR_TARGET for one in METHODS}
    for name, (method, target) in cases.items():
        if wanted is None or any(text in name for text in wanted):
            print(f"compiling {name}", flush=True)
            figures[name] = stamped(compiled(method, target), target)
            ordered = {name: figures[name] for name in cases if name in figures}
            record(
                "aot_fine_tuning", ordered, command=COMMAND
            )  # what took minutes outlives a failure
    PAGE.write_text(page_with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print("written to benchmarks/results/aot_fine_tuning.json and docs/lora.md")


if __name__ == "__main__":
    main()
