"""Writes the tables of docs/performance.md from the results of other benchmarks.

python benchmarks/performance_page.py

A goal is a bound on a figure of `results/`; the page shows the result of each, and whether
it meets the goal.
"""

import json
from pathlib import Path
from typing import Any

import attrs

from axcore.report.table import markdown_table, page_with_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
END = "<!-- end of table -->"

ON_256 = "llama2-7b on tpu-v5p-512"
ON_512 = "llama2-70b on tpu-v5p-1024"
EXPERTS = "mixtral-8x7b on tpu-v5p-512, 4 rows at once, recomputing all"
EXPERTS_BY_TWO = EXPERTS.replace("4 rows", "2 rows")


@attrs.frozen
class Goal:
    """A bound on a figure.

    Args:
        what: Is measured.
        bound: On the figure, the most that it may be.
        unit: Of both, as it is written behind a number.
        results: The file that has the figure.
        path: To it, by keys.
        is_min: Whether the bound is the least that the figure may be instead.
    """

    what: str
    bound: float
    unit: str
    results: str
    path: tuple[str, ...]
    is_min: bool = False

    def row(self) -> tuple[str, ...]:
        """Return what is measured, the bound, what was found, whether it holds, and the file."""
        found = _at(_figures(self.results), self.path)
        shown = "not measured" if found is None else _number(found) + self.unit
        goal = f"{'>=' if self.is_min else '<='} {self.bound:g}{self.unit}"
        return self.what, goal, shown, self._is_met(found), f"`{self.results}.json`"

    def _is_met(self, found: float | None) -> str:
        if found is None:
            return ""
        over = round(found, 3) - self.bound
        return "yes" if (over >= 0 if self.is_min else over <= 0) else "no"


_STARTS = ("axcore_train_tiny_to_first_step", "compiled_before", "in_all_s")
GOALS = (
    Goal(
        "Llama 2 7B, 256 chips of v5p",
        2.05,
        " s",
        "aot_experiments",
        (ON_256, "predicted_step_s"),
    ),
    Goal(
        "the same, time to compile", 60, " s of a core", "aot_experiments", (ON_256, "processor_s")
    ),
    Goal(
        "Llama 2 70B, 512 chips of v5p",
        9.9,
        " s",
        "aot_experiments",
        (ON_512, "predicted_step_s"),
    ),
    Goal(
        "Mixtral 8x7B, 256 chips of v5p, temporaries",
        17.4,
        " GiB",
        "aot_experiments",
        (EXPERTS, "temporaries_gib"),
    ),
    Goal(
        "the same, with two rows at once",
        17.4,
        " GiB",
        "aot_experiments",
        (EXPERTS_BY_TWO, "temporaries_gib"),
    ),
    Goal(
        "step of `tiny` / step in plain JAX, fastest",
        1.0,
        "",
        "overhead",
        ("one_by_one", "fastest_step_s", "ratio"),
    ),
    Goal("the same, median", 1.0, "", "overhead", ("one_by_one", "step_time_s", "ratio")),
    Goal("the same, FLOPs", 1.0, "", "overhead", ("one_by_one", "flops", "ratio")),
    Goal(
        "the same on 8 devices, median",
        1.0,
        "",
        "overhead_8_devices",
        ("one_by_one", "step_time_s", "ratio"),
    ),
    Goal(
        "step of `tiny` / step of `torch.compile`",
        1.0,
        "",
        "tiny_peers",
        ("torch_compile", "axcore_by_it"),
    ),
    *(
        Goal(
            f"step of a small {model} / {library}' by PyTorch, {how}",
            1.0,
            "",
            f"{name}_peers",
            (f"{library}_{key}", "axcore_by_it"),
        )
        for name, model, library in (
            ("vit", "ViT", "transformers"),
            ("whisper", "Whisper", "transformers"),
            ("dit", "DiT", "diffusers"),
        )
        for key, how in (("eager", "eager"), ("compile", "compiled"))
    ),
    Goal(
        "a mixture of 64 experts / one of 8, both passes",
        1.3,
        "",
        "moe",
        ("forward_and_backward", "growth", "processor_time"),
    ),
    Goal(
        "time to compile the first state of 16 unrolled layers / the step",
        1.0,
        "",
        "compile_init",
        ("tiny, 16 layers, unrolled", "ratio"),
    ),
    Goal("`axcore train tiny` to its first step, with a warm cache", 3.0, " s", "startup", _STARTS),
    Goal(
        "`axcore config show tiny`", 0.6, " s", "startup", ("axcore_config_show_tiny", "in_all_s")
    ),
    Goal(
        "importing an experiment",
        1.0,
        " s",
        "startup",
        ("import_axcore_experiments_tiny", "in_all_s"),
    ),
)

_BEST, _OURS = "best", "ours_over_best_rival"


def gpu_goals(chip: str) -> tuple[Goal, ...]:
    """Return the goals on a GPU, whose figures are copies of what `benchmarks/gpu/run.sh` wrote.

    Args:
        chip: As files name it.
    """
    step, card = f"gpu_{chip}_train_step", chip.upper()
    return (
        Goal(
            f"8B-shaped step on an {card}, MFU in bfloat16",
            0.6,
            "",
            step,
            (_BEST, "mfu", "axcore"),
            is_min=True,
        ),
        Goal(
            "the same in float8, speed-up",
            1.4,
            " times",
            step,
            (_BEST, "fp8_speedup"),
            is_min=True,
        ),
        Goal(
            "the same, speed-up over PyTorch",
            1.1,
            " times",
            step,
            (_BEST, "speedup_over_torch"),
            is_min=True,
        ),
        Goal(
            f"causal attention of 4k on an {card} / cuDNN's, both passes",
            1.0,
            "",
            f"gpu_{chip}_attention_causal",
            ("contests", "4096_both", _OURS),
        ),
        Goal(
            "the same, documents of 1k in rows of 4k",
            0.667,
            "",
            f"gpu_{chip}_attention_packed",
            ("contests", "4096_key_heads_16_both", _OURS),
        ),
    )


GPU_GOALS = (*gpu_goals("h100"), *gpu_goals("h200"))
"""Shown once there are results."""

STEPS = (
    ON_256,
    f"{ON_256}, recomputing all",
    f"{ON_256}, default kernels",
    ON_512,
    f"{ON_512}, recomputing all",
    f"{ON_512}, default kernels",
    EXPERTS,
    EXPERTS_BY_TWO,
)
PEERS = {
    "levanter": "Levanter",
    "equinox": "Equinox",
    "flax_nnx": "Flax NNX",
    "torch_eager": "PyTorch, eager",
    "torch_compile": "PyTorch, `torch.compile`",
}
PARTS = {
    "products": "the layers' projections",
    "attention": "attention",
    "rotary": "rotary positions",
    "gate": "gate of the feed-forward",
    "norm": "norms",
    "loss": "loss, with its projection",
    "embedding": "embedding",
    "optimizer": "optimizer",
}


def goals_table() -> str:
    """Return every goal with its result."""
    header = ("what", "goal", "result", "met", "file")
    measured = [goal for goal in GPU_GOALS if (RESULTS / f"{goal.results}.json").exists()]
    return markdown_table(header, [goal.row() for goal in (*GOALS, *measured)])


def steps_table() -> str:
    """Return the predicted train steps next to published ones."""
    figures = _figures("aot_experiments")
    rows = [
        (
            name.replace(" on ", ", "),
            f"{one['needed_gib']} of {one['capacity_gib']}",
            f"{one['predicted_step_s']:.3g} s",
            f"{100 * one['predicted_mfu']:.1f} %",
            _published(figures, name.split(",")[0]),
        )
        for name in STEPS
        if (one := figures.get(name))
    ]
    return markdown_table(("step", "needs, of GiB", "predicted", "MFU", "published"), rows)


def _published(figures: dict[str, Any], name: str) -> str:
    """Return the steps that others published of an experiment on a target, however recomputed."""
    found = {
        who: step_s
        for other, one in figures.items()
        if other.split(",")[0] == name
        for who, step_s in one["published_step_s"].items()
    }
    return ", ".join(f"{who} {step_s} s" for who, step_s in found.items())


def peers_table() -> str:
    """Return the train step of `tiny` in other libraries."""
    figures = _figures("tiny_peers")
    rows = [
        (
            name,
            f"{one['step_ms']:.0f} ms",
            f"{one['axcore_by_it']:.2f}",
            f"{one['axcore_by_it_processor']:.2f}",
            f"{one['first_step_s']:.1f} s",
            f"{one['peak_mib']} MiB",
        )
        for key, name in {"axcore": "axcore", **PEERS}.items()
        for one in (figures[key],)
    ]
    header = ("library", "a step", "ratio", "ratio of processor time", "first step", "memory")
    return markdown_table(header, rows)


MODELS = {
    "vit": ("ViT", "transformers", "pictures"),
    "whisper": ("Whisper", "transformers", "sounds"),
    "dit": ("DiT", "diffusers", "pictures"),
}


def models_table() -> str:
    """Return the train steps of small models of pictures and sound, by axcore and by PyTorch."""
    rows = []
    for name, (model, library, unit) in MODELS.items():
        figures = _figures(f"{name}_peers")
        rivals = [figures[f"{library}_{how}"] for how in ("eager", "compile")]
        rows.append(
            (
                f"{model}, beside {library}",
                f"{figures['axcore']['step_ms']:.0f} ms",
                f"{figures['axcore'][f'{unit}_per_s']:.0f} {unit} a second",
                *(f"{one['axcore_by_it']:.2f}" for one in rivals),
                *(f"{one['axcore_by_it_processor']:.2f}" for one in rivals),
            )
        )
    return markdown_table(
        (
            *("model", "a step", "", "by eager", "by `torch.compile`"),
            *("processor time by eager", "by `torch.compile`"),
        ),
        rows,
    )


def parts_table() -> str:
    """Return processor time of each part of that step, in axcore and in PyTorch."""
    parts = _figures("tiny_parts")["processor_ms_a_step"]
    who = ("axcore", "torch_eager", "torch_compile")
    rows = [
        (name, *(f"{parts[key][one]:.1f} ms" for one in who))
        for key, name in {**PARTS, "step": "**full step**"}.items()
    ]
    return markdown_table(("part", "axcore", "PyTorch, eager", "`torch.compile`"), rows)


TABLES = {
    "goals": goals_table,
    "steps": steps_table,
    "peers": peers_table,
    "models": models_table,
    "parts": parts_table,
}


def page_with_tables(page: str) -> str:
    """Return the page with all tables as the results have them."""
    for name, table in TABLES.items():
        begin = f"<!-- table: performance_page.py, {name} -->\n"
        page = page_with_table(page, table() + "\n", begin, END)
    return page


def _figures(results: str) -> dict[str, Any]:
    path = RESULTS / f"{results}.json"
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return figures


def _number(found: float) -> str:
    return f"{found:.3f}" if found < 10 else f"{found:.1f}"


def _at(figures: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        figures = figures.get(key) if isinstance(figures, dict) else None
    return None if figures is None else float(figures)


def main() -> None:
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
