"""What a GRPO step of a 7B model takes: memory and predicted time of trainer and engine together.

    pip install "axl-tpu[aot]" "axl-gpu[aot]"
    python benchmarks/aot_rollouts.py

compiles `grpo` with the model of `llama2-7b` for eight H100 and for 32 chips of v5p, with the mesh
of the model's own rule (`fsdp`) and with layers split over chips (`model`), writes
`results/aot_rollouts.json` after each, and then the tables of docs/reinforcement.md. With
`--only`, rows that do not hold the text stay as they were recorded. Nothing here has run on a chip.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import attrs
from _record import record, recorded, stamped

from axcore.aot import compile_rollouts, rollout_text
from axcore.aot.report.report import show_bytes, show_seconds
from axcore.config import evolve
from axcore.experiments import llama2_7b
from axcore.inference import EngineConfig
from axcore.plugins import Hardware
from axcore.report.table import markdown_table, page_with_table
from axcore.rollouts.experiments import grpo
from axcore.trainer import resolve

NAME = "aot_rollouts"
COMMAND = f"python benchmarks/{NAME}.py"
"""Remakes all rows; those of calls with `--only` were recorded one after the other."""

PROMPT, NEW_TOKENS = 256, 1024
PROMPTS, GROUP_SIZE, STEPS = 64, 8, 4

BFLOAT16 = "replace(target=axcore.layers:Fp8Current, new=axcore.layers:PlainDot, at=model.**)"
"""The rule for GPUs trains in float8; a policy in bfloat16 is what the engine samples with."""

PAGE = Path(__file__).parents[1] / "docs" / "reinforcement.md"
BEGIN = f"<!-- table: {NAME}.py -->\n"
BEGIN_PHASES = f"<!-- table: {NAME}.py, phases -->\n"
END = "<!-- end of table -->"


@attrs.frozen(kw_only=True)
class Case:
    """A machine and how it is used.

    Args:
        target: The machine.
        mesh: What is said of the mesh.
        max_num_seqs: Rows of the engine.
        changes: Each as `--modify` takes it.
    """

    target: str
    mesh: str
    max_num_seqs: int
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return f"{self.target}, {self.mesh}"


CASES = (
    Case(target="gpu-h100-8", mesh="fsdp 8", max_num_seqs=32, changes=(BFLOAT16,)),
    Case(
        target="gpu-h100-8",
        mesh="model 8",
        max_num_seqs=256,
        changes=(BFLOAT16, "mesh_shape(mesh={'model': 8})"),
    ),
    Case(target="tpu-v5p-64", mesh="fsdp 32", max_num_seqs=32),
    Case(
        target="tpu-v5p-64",
        mesh="fsdp 4, model 8",
        max_num_seqs=256,
        changes=("mesh_shape(mesh={'fsdp': 4, 'model': 8})",),
    ),
)


def config(case: Case) -> Any:
    """Return `grpo` with the model of `llama2-7b`, and its mesh rules."""
    cfg, base = grpo(), llama2_7b()
    data = evolve(
        cfg.data,
        batch_size=PROMPTS * GROUP_SIZE // STEPS,
        batches_per_rollout=STEPS,
        group_size=GROUP_SIZE,
        max_new_tokens=NEW_TOKENS,
        seq_len=PROMPT + NEW_TOKENS,
        engine=EngineConfig(max_num_seqs=case.max_num_seqs, sampler_kinds=("greedy", "plain")),
    )
    return evolve(cfg, model=base.model, mesh_rules=base.mesh_rules, data=data)


def compiled(case: Case) -> dict[str, Any]:
    """Return the report of a case, without the modules and collectives of the train step."""
    resolved = resolve(config(case), Hardware.parse(case.target), modify=case.changes)
    report = compile_rollouts(resolved, prompt=PROMPT, experiment="llama2-7b grpo")
    print(rollout_text(report), flush=True)
    fields: dict[str, Any] = json.loads(report.to_json())
    for name in ("modules", "collectives"):
        del fields["train"][name]
    return {"target": case.target, "mesh": case.mesh, "changes": list(case.changes), **fields}


def memory_table(figures: dict[str, Any]) -> str:
    """Return whether each case fits, and what takes its memory."""
    names = ("parameters", "optimizer", "weight", "cache")
    rows = [
        (
            one["target"],
            one["mesh"],
            "yes" if one["fits"] else "no",
            f"{show_bytes(one['peak_bytes'])} of {show_bytes(one['memory']['capacity_bytes'])}",
            *(show_bytes(one["memory"][f"{name}_bytes"]) for name in names),
            show_bytes(one["temporaries_bytes"]),
        )
        for one in figures.values()
    ]
    header = (
        "target",
        "mesh",
        "fits",
        "at once",
        "parameters",
        "optimizer",
        "engine's weights",
        "caches",
        "temporaries",
    )
    return markdown_table(header, rows) + "\n"


def phases_table(figures: dict[str, Any]) -> str:
    """Return what each phase of a rollout takes."""
    rows = [
        (
            one["target"],
            one["mesh"],
            phase["name"],
            str(phase["rows"] or ""),
            f"{phase['calls']:,}",
            show_seconds(phase["call_s"]),
            show_seconds(phase["seconds"]),
            show_bytes(phase["temporaries_bytes"]),
        )
        for one in figures.values()
        for phase in one["phases"]
    ]
    header = ("target", "mesh", "phase", "rows", "calls", "each", "all", "temporaries")
    return markdown_table(header, rows) + "\n"


def page_with_figures(page: str) -> str:
    """Return the page with the tables as the results have them."""
    figures = recorded(NAME)
    page = page_with_table(page, memory_table(figures), BEGIN, END)
    return page_with_table(page, phases_table(figures), BEGIN_PHASES, END)


def main() -> None:
    """Compile, record, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="rows whose name holds this text")
    wanted = parser.parse_args().only
    figures = recorded(NAME) if wanted else {}
    for case in CASES:
        if wanted is None or any(text in case.name for text in wanted):
            print(f"compiling {case.name}", flush=True)
            figures[case.name] = stamped(compiled(case), case.target)
            ordered = {one.name: figures[one.name] for one in CASES if one.name in figures}
            record(NAME, ordered, command=COMMAND)  # what took minutes outlives a failure
    PAGE.write_text(page_with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written to benchmarks/results/{NAME}.json and docs/reinforcement.md")


if __name__ == "__main__":
    main()
