"""Weak scaling on paper: train steps compiled for ever more chips at equal rows a chip.

    pip install "axl-tpu[aot]"
    python benchmarks/scaling.py
    python benchmarks/scaling.py --only "16B on v5e" --slices 1 --slices 32

compiles them one after another, writes `results/scaling.json` after each, and then the table and
the chart of docs/scaling.md (`scaling_page.py`). Rows that are not compiled stay as they were
recorded.

The models on v5e are those that MaxText's authors published for 1 to 32 slices of 256 chips, as
their scripts have them: `global_parameter_scale` 16 to 128 of its base model, 2048 tokens a row, 6
to 1 rows a chip, everything recomputed, sharded within a slice and replicated over slices. Source:
MaxText/configs/v5e of github.com/AI-Hypercomputer/maxtext, README.md and 16b.sh to 128b.sh.
128B has layers split over 16 chips; as in its script, heads are kept in the host's memory.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import attrs
from _record import record, recorded, stamped
from scaling_page import write_page

from axcore.aot import compile_resolved
from axcore.config import update_config
from axcore.experiments import llama2_7b
from axcore.modifiers import RematModifier
from axcore.parallel import ACTIVATION_RULES
from axcore.plugins import Hardware, MeshRule
from axcore.trainer import resolve


@attrs.frozen(kw_only=True)
class Series:
    """A model on more and more slices.

    Args:
        name: Of the model.
        chip: What it runs on.
        rows: Rows of a chip.
        dim: Width.
        heads: Of 128 columns each.
        hidden_dim: Of the feed-forward.
        layers: How many.
        seq_len: Tokens of a row.
        mesh: Of a slice.
        remat: What layers keep for the backward pass, a preset.
        splits_width: Whether hidden vectors between layers are split over `model` too.
        slice_size: As the target's name counts it.
        slices: How many slices are compiled for.
        published_mfu: By slices.
    """

    name: str
    chip: str
    rows: int
    dim: int
    heads: int
    hidden_dim: int
    layers: int
    seq_len: int = 2048
    mesh: Mapping[str, int] = {"fsdp": -1}
    remat: str = "full"
    splits_width: bool = False
    slice_size: int = 256
    slices: tuple[int, ...] = (1, 32)
    published_mfu: Mapping[int, float] = {}

    def target(self, slices: int) -> str:
        """Return the name of several slices."""
        return f"tpu-{self.chip}-{slices}x{self.slice_size}"

    def config(self, chips: int) -> Any:
        """Return the trainer's config."""
        layer = "model.decoder.stack.layer"
        rule = MeshRule(
            match="tpu-*", mesh=self.mesh, modifiers=(RematModifier(policy=self.remat),)
        )
        rules = {"embed": ("model",), "vocab": ()} if self.splits_width else {}
        return update_config(
            llama2_7b(),
            {
                "model.vocab_size": 32_000,
                "model.dim": self.dim,
                "model.decoder.stack.num_layers": self.layers,
                f"{layer}.attention.num_heads": self.heads,
                f"{layer}.attention.head_dim": 128,
                f"{layer}.feed_forward.hidden_dim": self.hidden_dim,
                "data.seq_len": self.seq_len,
                "data.batch_size": self.rows * chips,
                "sharding.activation_rules": {**ACTIVATION_RULES, **rules},
                "mesh_rules": (rule,),
                "kernels.choice": "fastest",
            },
        )


PUBLISHED = (1, 2, 4, 8, 16, 32)


def published(*percent: float) -> dict[int, float]:
    return {slices: one / 100 for slices, one in zip(PUBLISHED, percent, strict=True)}


ON_V5E = Series(
    name="16B",
    chip="v5e",
    rows=6,
    dim=4096,
    heads=64,
    hidden_dim=28_672,
    layers=32,
    slices=(1, 2, 32),
    published_mfu=published(61.10, 59.37, 59.14, 58.27, 56.56, 54.65),
)

ALL_SERIES = (
    ON_V5E,
    attrs.evolve(
        ON_V5E,
        name="32B",
        rows=4,
        dim=8192,
        slices=(1, 32),
        published_mfu=published(66.86, 64.81, 64.10, 63.67, 62.26, 60.40),
    ),
    attrs.evolve(
        ON_V5E,
        name="64B",
        rows=2,
        dim=8192,
        layers=64,
        slices=(1, 32),
        published_mfu=published(59.90, 56.66, 55.85, 54.96, 53.29, 50.18),
    ),
    attrs.evolve(
        ON_V5E,
        name="128B",
        rows=1,
        dim=8192,
        heads=128,
        hidden_dim=57_344,
        layers=64,
        mesh={"fsdp": 16, "model": 16},
        remat="offload_attention",
        splits_width=True,
        slices=(1, 32),
        published_mfu=published(56.06, 55.82, 54.93, 52.93, 50.86, 46.25),
    ),
    attrs.evolve(ON_V5E, chip="v6e", slices=(1, 128), published_mfu={}),
)


def measured(series: Series, slices: int) -> dict[str, Any]:
    """Return the figures of a step on a number of slices."""
    hardware = Hardware.parse(series.target(slices))
    resolved = resolve(series.config(hardware.chips), hardware)
    report = compile_resolved(resolved, f"{series.name} on {series.chip}")
    memory, time = report.memory, report.time
    assert memory is not None, report.refusal
    figures = {
        "chips": report.chips,
        "mesh": report.mesh,
        "rows_a_chip": series.rows,
        "needs_gib": round(memory.peak_bytes / 2**30, 2),
        "capacity_gib": round((memory.capacity_bytes or 0) / 2**30, 2),
        "published_mfu": series.published_mfu.get(slices),
        "compile_s": round(report.compile_s, 1),
    }
    if time is None:
        return {**figures, "refusal": report.refusal}
    return {
        **figures,
        "predicted_step_s": time.step_s,
        "waits_s": time.collectives_s,
        "predicted_mfu": time.mfu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="series whose names hold this")
    parser.add_argument("--slices", type=int, action="append", help="how many; all by default")
    given = parser.parse_args()
    for series in ALL_SERIES:
        name = f"{series.name} on {series.chip}"
        for slices in series.slices if given.only in name else ():
            if given.slices and slices not in given.slices:
                continue
            figures = recorded("scaling")
            one = stamped(measured(series, slices), series.target(slices))
            of_series = figures.setdefault(name, {})
            of_series[str(slices)] = one
            figures[name] = dict(sorted(of_series.items(), key=lambda item: int(item[0])))
            print(f"{name:12} {series.target(slices):18} {one}", flush=True)
            record("scaling", figures, command="python benchmarks/scaling.py")
    write_page(recorded("scaling"))


if __name__ == "__main__":
    main()
