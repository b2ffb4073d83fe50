"""How far the probabilities of a rollout's sampler are from the trainer's, by what is in few bits.

    python benchmarks/sampler_gap.py [--steps 450]

`tiny` is trained first, as random weights give every token nearly the same probability. It then
continues beginnings of lines of Python, and each sampled token's log-probability by the engine is
compared with the trainer's, in nats. The trainer computes in float32 but for the rows named
bfloat16. Another processor gives other last digits.
"""

import argparse
import json
import random
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import attrs
import jax
from _record import REPOSITORY, record, recorded

from axcore.config import evolve, update_config
from axcore.data import Policy
from axcore.experiments.tiny import tiny
from axcore.inference import EngineConfig
from axcore.modifiers import KVCache
from axcore.module import DTypes
from axcore.ops import KernelPolicy
from axcore.plugins import Hardware
from axcore.report.table import markdown_table, page_with_table
from axcore.rewards import RegexMatch
from axcore.rollouts import PromptFiles, Rollouts
from axcore.testing import trainer_on
from axcore.testing.sampler_suite import sampler_gap

PAGE = REPOSITORY / "docs" / "reinforcement.md"
BEGIN, END = "<!-- table: sampler_gap.py -->\n\n", "\n\n<!-- end of table -->"

NUM_PROMPTS, GROUP_SIZE, PROMPT_LENGTH, NEW_TOKENS = 32, 4, 24, 96
ROWS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"trainer": "bfloat16", "sampler": "bfloat16"},
    "bfloat16, sampled in float32": {"trainer": "bfloat16"},
    "weights in int8": {"weights": "int8"},
    "weights in int4": {"weights": "int4"},
    "weights in float8": {"weights": "float8"},
    "cache in bfloat16": {"cache": "bfloat16"},
    "cache in int8": {"cache": "int8"},
    "cache in float8": {"cache": "float8_e4m3fn"},
    "weights and cache in int8": {"weights": "int8", "cache": "int8"},
}


def write_prompts(path: Path) -> None:
    """Write beginnings of lines of the standard library, the same ones each time."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lines = [
        line
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if len(line) > 2 * PROMPT_LENGTH and line.isascii()
    ]
    chosen = random.Random(0).sample(lines, NUM_PROMPTS)
    path.write_text(
        "".join(json.dumps({"prompt": one[:PROMPT_LENGTH]}) + "\n" for one in chosen),
        encoding="utf-8",
    )


def measured(
    model: Any,
    state: Any,
    prompts: Path,
    *,
    trainer: Any = "float32",
    sampler: Any = "float32",
    weights: Any = None,
    cache: Any = None,
) -> dict[str, Any]:
    """Return the gap of one row."""
    cfg = evolve(model, dtypes=DTypes(compute=trainer))
    if cache is not None:
        cfg = KVCache(dtype=cache).apply(cfg, Hardware.detect())
    data = Rollouts.Config(
        prompts=PromptFiles.Config(path=str(prompts)),
        rewards={"none": RegexMatch.Config(pattern="x")},
        batch_size=GROUP_SIZE * NUM_PROMPTS,
        group_size=GROUP_SIZE,
        max_new_tokens=NEW_TOKENS,
        seq_len=128,
        validation_fraction=0.0,
        engine=EngineConfig(
            max_num_seqs=64, sampler_kinds=("plain",), compute=sampler, weights=weights
        ),
    ).build()
    kernels = KernelPolicy(hardware=Hardware.detect(), allow=("portable",))
    policy = Policy(cfg.build(), 0, state, kernels=kernels)
    batch = data.batch(data.begin_rollout(policy, range(NUM_PROMPTS))())
    return attrs.asdict(sampler_gap(policy, batch, data.config.sampling.temperature))


def page_with_figures(page: str) -> str:
    """Return the page with the table as the results have it."""
    rows = [
        (name, f"{row['mean']:.1e}", f"{row['largest']:.1e}")
        for name, row in recorded("sampler_gap")["rows"].items()
    ]
    table = markdown_table(("what differs from float32", "mean gap", "largest gap"), rows)
    return page_with_table(page, table, BEGIN, END)


def main() -> None:
    """Train, measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=450)
    given = parser.parse_args()
    cfg = update_config(tiny(), {"max_steps": given.steps, "eval_every_steps": given.steps})
    with tempfile.TemporaryDirectory() as folder:
        result = trainer_on(cfg, 1).run(Path(folder) / "run")
        prompts = Path(folder) / "prompts.jsonl"
        write_prompts(prompts)
        state = jax.tree.map(jax.numpy.asarray, result.state.model)
        figures: dict[str, Any] = {"validation": result.validation, "rows": {}}
        for name, row in ROWS.items():
            figures["rows"][name] = measured(cfg.model, state, prompts, **row)
            print(name, json.dumps(figures["rows"][name]), flush=True)
            record("sampler_gap", figures)
    PAGE.write_text(page_with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
