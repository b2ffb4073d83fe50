"""What serves models on machines that are not available, compiled: tokens by cycles and bytes.

    pip install "axl-tpu[aot]"
    python benchmarks/serving_compiled.py                # a quarter of an hour
    python benchmarks/serving_compiled.py --only 7b

compiles what an engine with its own settings runs, split over all chips, writes
`results/serving_compiled.json` after each machine, and compares with what AXLearn published
for the same model and machine. Nothing here has run on a chip. Goals: a token faster than
published, in at most 1.25 of the time of reading weights and caches once.
"""

import argparse
import json
from typing import Any

import attrs
from _record import RESULTS, record

from axcore.aot import ServingLoad, compile_serving
from axcore.aot.serving.report import CallCost, FirstToken
from axcore.config import evolve
from axcore.experiments.named import load_experiment
from axcore.inference import EngineConfig
from axcore.plugins import Hardware

CONTEXT = 1280
"""Tokens of each row in caches while it decodes: of a prompt and an answer of a chat."""

REPORTED = (
    "context",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_decode_steps",
    "page_size",
    "num_pages",
    "pages_that_fit",
    "num_programs",
    "num_compiled",
    "compile_s",
    "weight_bytes",
    "page_bytes",
    "program_bytes",
    "temporaries_bytes",
)


@attrs.frozen(kw_only=True)
class Case:
    """A model on a machine, and AXLearn's published times, of arXiv:2507.05411."""

    experiment: str
    target: str
    published_first_token_s: float
    published_token_s: float

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return f"{self.experiment} on {self.target}"


CASES = (
    Case(
        experiment="llama2-7b",
        target="tpu-v5p-8",
        published_first_token_s=0.040,
        published_token_s=0.0091,
    ),
    Case(
        experiment="llama2-70b",
        target="tpu-v6e-8",
        published_first_token_s=0.150,
        published_token_s=0.0281,
    ),
)


def compiled(case: Case) -> dict[str, Any]:
    load = ServingLoad(prompt=512, engine=EngineConfig(max_length=CONTEXT))
    report = compile_serving(
        evolve(load_experiment(case.experiment), mesh={"model": -1}),
        Hardware.parse(case.target),
        load,
        experiment=case.experiment,
    )
    token_s = report.decode[0].seconds
    assert token_s is not None
    return {
        **{name: getattr(report, name) for name in REPORTED},
        "mesh": dict(report.mesh),
        "first_token": {str(one.beside): first_figures(one) for one in report.first},
        "token": {str(one.rows): figures_of(one) for one in report.decode},
        "published_first_token_s": case.published_first_token_s,
        "published_token_s": case.published_token_s,
        "of_published_token": token_s / case.published_token_s,
        "kernels": list(report.kernels),
    }


def first_figures(one: FirstToken) -> dict[str, Any]:
    return {"pieces": one.pieces, "waits_s": one.waits_s, **figures_of(one.cost)}


def figures_of(one: CallCost) -> dict[str, Any]:
    return {
        **attrs.asdict(one),
        "tokens_per_s": one.tokens_per_s,
        "over_floor": one.over_floor,
        "bound_by": one.bound_by,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    only = parser.parse_args().only
    kept = RESULTS / "serving_compiled.json"
    figures = json.loads(kept.read_text(encoding="utf-8"))["figures"] if kept.exists() else {}
    for case in CASES:
        if only in case.name:
            figures[case.name] = compiled(case)
            path = record(
                "serving_compiled", figures, command="python benchmarks/serving_compiled.py"
            )
            print(case.name, path)


if __name__ == "__main__":
    main()
