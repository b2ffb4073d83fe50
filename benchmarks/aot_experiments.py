"""What fits where: the experiments' train steps, compiled for the machines that their rules name.

    pip install "axl-tpu[aot]" "axl-gpu[aot]"
    python benchmarks/aot_experiments.py
    python benchmarks/aot_experiments.py --only mixtral --only h100

compiles them one after another, writes `results/aot_experiments.json` after each, with the
published times of others where there are any for the same model, machine, batch and precision, and
then the tables of docs/aot.md (`aot_tables.py`). With `--only`, rows that do not hold the text stay
as they were recorded. Nothing here has run on a chip. `trn2` is compiled by XLA for the host, with
portable kernels, and so takes more memory and time than the chip's own compiler would.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any

import attrs
from _record import record, recorded, stamped
from aot_tables import write_page

from axcore.aot import compile_resolved
from axcore.config import find_config
from axcore.experiments.named import load_resolved
from axcore.layers import Fp8Current, Int8Dynamic
from axcore.plugins import Hardware

BFLOAT16 = "replace(target=axcore.layers:Fp8Current, new=axcore.layers:PlainDot, at=model.**)"
"""Undoes the rule by which GPUs that can multiply in float8: the published steps did not."""

WITHOUT_INT8 = "replace(target=axcore.layers:Int8Dynamic, new=axcore.layers:PlainDot, at=model.**)"
"""Undoes the rule by which v5e multiplies in int8."""

LOW_PRECISION = {"float8": Fp8Current, "int8": Int8Dynamic}
"""Formats of products that a rule may ask for in place of bfloat16."""

FASTEST = ("kernels.choice=fastest",)
"""What a step may take with the kernels that promise most, though ours never ran on a chip."""


@attrs.frozen(kw_only=True)
class Case:
    """An experiment on a machine.

    Args:
        experiment: Its name.
        target: The machine's.
        changes: Each as `--modify` takes it.
        sets: As `--set` takes them.
        note: What the changes do, in a word.
        published_step_s: By system, of arXiv:2507.05411, at 1024 rows of 4096 tokens in bfloat16.
    """

    experiment: str
    target: str
    changes: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    note: str = ""
    published_step_s: Mapping[str, float] = {}

    @property
    def name(self) -> str:
        """What it is called in the table and in the results."""
        return f"{self.experiment} on {self.target}" + f", {self.note}" * bool(self.note)


def over_experts(
    experiment: str, target: str, ways: int, *, rows: int, room: float | None = None
) -> Case:
    sets = [f"data.batch_size={rows}"]
    if room is not None:
        sets.append(f"model.**.dispatch.exchange_room={room}")
    return Case(
        experiment=experiment,
        target=target,
        changes=(f"mesh_shape(mesh={{'fsdp': -1, 'expert': {ways}}})",),
        sets=tuple(sets),
        note=f"experts over {ways}" + f", room {room}" * (room is not None),
    )


def with_default_kernels(experiment: str, target: str) -> Case:
    return Case(
        experiment=experiment,
        target=target,
        sets=("kernels.choice=validated",),
        note="default kernels",
    )


def in_bfloat16(experiment: str, target: str, **published_step_s: float) -> Case:
    return Case(
        experiment=experiment,
        target=target,
        changes=(BFLOAT16,),
        note="bfloat16",
        published_step_s=published_step_s,
    )


CASES = (
    Case(experiment="llama2-7b", target="tpu-v5e-256"),
    Case(experiment="llama2-7b", target="tpu-v6e-256"),
    Case(experiment="llama2-7b", target="tpu-v5p-512"),
    Case(
        experiment="llama2-7b",
        target="tpu-v5p-512",
        changes=("remat(policy=full)",),
        note="recomputing all",
        published_step_s={"AXLearn": 2.5, "MaxText": 2.7},
    ),
    with_default_kernels("llama2-7b", "tpu-v5p-512"),
    Case(experiment="llama2-7b", target="gpu-h100-8"),
    Case(experiment="llama2-7b", target="gpu-h100-256"),
    in_bfloat16("llama2-7b", "gpu-h100-256", AXLearn=1.4),
    Case(experiment="llama2-7b", target="trn2-1024", published_step_s={"AXLearn": 1.2}),
    Case(experiment="llama2-70b", target="tpu-v5p-1024"),
    Case(
        experiment="llama2-70b",
        target="tpu-v5p-1024",
        changes=("remat(policy=full)",),
        note="recomputing all",
        published_step_s={"AXLearn": 11.6, "MaxText": 12.3},
    ),
    with_default_kernels("llama2-70b", "tpu-v5p-1024"),
    Case(experiment="llama2-70b", target="gpu-h100-512"),
    in_bfloat16("llama2-70b", "gpu-h100-512", AXLearn=9.2, Megatron=7.8),
    Case(experiment="llama2-70b", target="trn2-1024", published_step_s={"AXLearn": 11.2}),
    Case(experiment="llama3-8b", target="tpu-v5e-256"),
    Case(experiment="llama3-8b", target="tpu-v6e-256"),
    Case(experiment="llama3-8b", target="gpu-h100-256"),
    Case(experiment="llama3-8b", target="gpu-h200-1"),
    Case(
        experiment="llama3-8b",
        target="tpu-v5e-8",
        changes=("low_precision_optimizer", WITHOUT_INT8),
        sets=("model.dtypes.param=bfloat16", "data.batch_size=8", "num_micro_batches=1"),
        note="8 rows, all in bfloat16, moments in 8 bits",
    ),
    Case(experiment="llama3-70b", target="gpu-h100-512"),
    Case(experiment="mistral-7b", target="tpu-v5e-256"),
    Case(experiment="mistral-7b", target="gpu-h100-256"),
    Case(experiment="mixtral-8x7b", target="gpu-h100-64"),
    *(
        Case(
            experiment="mixtral-8x7b",
            target="tpu-v5p-512",
            sets=(
                "data.seq_len=4096",
                "data.batch_size=1024",
                f"num_micro_batches={4 // rows}",
            ),
            note=f"{rows} rows at once, recomputing all",
        )
        for rows in (4, 2)
    ),
    Case(experiment="qwen2-7b", target="gpu-h100-64"),
    Case(experiment="qwen2-7b", target="tpu-v6e-256"),
    over_experts("qwen3-30b-a3b", "tpu-v5p-1024", 8, rows=1024),
    over_experts("qwen3-30b-a3b", "tpu-v5p-1024", 8, rows=1024, room=2.0),
    over_experts("qwen3-30b-a3b", "tpu-v5p-8192", 8, rows=8192, room=2.0),
    over_experts("deepseek-v3", "tpu-v5p-1024", 32, rows=15_360, room=2.0),
    over_experts("deepseek-v3", "tpu-v5p-8192", 32, rows=12_288, room=2.0),
    *(
        Case(experiment=experiment, target=target)
        for experiment in ("vit-l16", "dit-xl2", "whisper-large-v3")
        for target in ("tpu-v5e-256", "gpu-h100-8")
    ),
    Case(experiment="siglip-so400m", target="tpu-v5e-256"),
    Case(experiment="siglip-so400m", target="gpu-h100-64"),
    Case(experiment="qwen2.5-vl-7b", target="tpu-v5e-256"),
    Case(
        experiment="qwen2.5-vl-7b",
        target="gpu-h100-8",
        sets=("data.batch_size=32",),
        note="32 rows",
    ),
)


def compiled(case: Case) -> dict[str, Any]:
    """Return what the compiler reports of a case."""
    hardware = Hardware.parse(case.target)
    resolved = load_resolved(
        case.experiment, FASTEST + case.sets, changes=case.changes, hardware=hardware
    )
    before_s = _children_s()
    report = compile_resolved(resolved, case.experiment)
    memory, time = report.memory, report.time
    step_s = time.step_s if time else None
    return {
        "fits": report.fits,
        "needed_gib": round(memory.peak_bytes / 2**30, 1) if memory else None,
        "temporaries_gib": round(memory.temporaries_bytes / 2**30, 2) if memory else None,
        "largest_buffers": [
            f"{one.count} of {one.nbytes / 2**30:.2f} GiB, {one.shape} of {one.module}"
            for one in (memory.largest if memory else ())
        ],
        "capacity_gib": round((memory.capacity_bytes or 0) / 2**30, 1) if memory else None,
        "cycles": time.cycles if time else None,
        "compute_s": time.compute_s if time else None,
        "products_s": time.products_s if time else None,
        "kernels_s": time.kernels_s if time else None,
        "collectives_s": time.collectives_s if time else None,
        "predicted_step_s": step_s,
        "predicted_mfu": time.mfu if time else None,
        "mfu_divides_by": time.mfu_peak if time else "",
        "products": next(
            (
                name
                for name, dot in LOW_PRECISION.items()
                if find_config(resolved.config.model, dot)
            ),
            "bfloat16",
        ),
        "published_step_s": dict(case.published_step_s),
        "predicted_over_published": {
            who: round(step_s / published, 3) for who, published in case.published_step_s.items()
        }
        if step_s
        else {},
        "compile_s": report.compile_s,
        "processor_s": round(_children_s() - before_s, 1),
        "rows_of_tokens": [report.batch[one] for one in ("rows", "tokens") if one in report.batch],
        "changes": list(case.changes),
        "sets": list(case.sets),
    }


def _children_s() -> float:
    """Return the processor time of processes that ended, as those that compile do."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="the row of this name, or all that hold it")
    wanted = parser.parse_args().only
    for case in CASES:
        if wanted is None or any(_is_meant(case, text) for text in wanted):
            print(f"compiling {case.name}", flush=True)
            row = stamped(compiled(case), case.target)
            _keep({**recorded("aot_experiments"), case.name: row})  # it outlives a failure
    print(f"written to benchmarks/results/aot_experiments.json and {write_page()}")


def _is_meant(case: Case, text: str) -> bool:
    names = [one.name for one in CASES]
    return text == case.name if text in names else text in case.name


def _keep(figures: dict[str, Any]) -> None:
    in_order = {case.name: figures[case.name] for case in CASES if case.name in figures}
    record("aot_experiments", in_order, command="python benchmarks/aot_experiments.py")


if __name__ == "__main__":
    main()
