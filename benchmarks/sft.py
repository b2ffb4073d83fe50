"""A tiny model, pre-trained here, learns to answer: a docstring's first line, with a signature.

The question is a function's name and the first line of its docstring, the answer its parameters.
Base, after conversations (`sft`) and after preferences (`dpo`): loss of held-out answers, exact
matches of greedy text, and by how much the right answer is ahead of another function's.

Run: python benchmarks/sft.py
"""

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _record import record
from _signatures import LONGEST_ANSWER, examples, write_chats, write_preferences

import axcore as ax
from axcore.cli.experiment import load_resolved
from axcore.data.split import is_validation
from axcore.inference import Generator, Sampling
from axcore.plugins import Hardware
from axcore.runs import Run, load_run
from axcore.trainer import Trainer

HELD_OUT = 0.05
NUM_QUESTIONS = 150
SETTINGS = {
    "sft": ("max_steps=300", "learner.schedule.peak=0.001", "data.batch_size=16"),
    "dpo": ("max_steps=60", "learner.schedule.peak=0.0003", "data.batch_size=8"),
}


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = examples()
        write_chats(folder / "chats.jsonl", pairs)
        write_preferences(folder / "pairs.jsonl", pairs)
        held = [
            one for i, one in enumerate(pairs, 1) if is_validation(f"chats.jsonl:{i}", HELD_OUT)
        ]
        ax.experiment("tiny").build().run(folder / "base")
        further(folder, "sft", "base", "chats")
        further(folder, "dpo", "sft", "pairs")
        figures = {
            "conversations": len(pairs) - len(held),
            "held_out": len(held),
            "share_of_commonest_answer": round(commonest(held), 4),
            **{run: measured(folder, run, held) for run in ("base", "sft", "dpo")},
            "in_all_s": round(time.perf_counter() - began, 1),
        }
    print(json.dumps(figures, indent=2))
    record("sft", figures)


def trainer_of(folder: Path, experiment: str, base: str, chats: str) -> Trainer:
    """Returns the trainer of a run that begins with another."""
    overrides = (
        f"init_from.path={folder / base}",
        f"data.source.path={folder / chats}.jsonl",
        f"data.validation_fraction={HELD_OUT}",
        *SETTINGS[experiment],
    )
    return Trainer(load_resolved(experiment, overrides, hardware=Hardware.detect()))


def further(folder: Path, experiment: str, base: str, chats: str) -> None:
    trainer_of(folder, experiment, base, chats).run(folder / experiment)


def measured(folder: Path, name: str, held: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns what a run says of held-out answers."""
    run = load_run(folder / name)
    judging = trainer_of(folder, "dpo", "sft", "pairs")
    state = {**run.state, "reference": load_run(folder / "sft").state}
    preference = judging.evaluate(state)
    answers = trainer_of(folder, "sft", name, "chats").evaluate(run.state)
    return {
        "answer_loss": round(answers["loss"], 4),
        "exact_matches": round(exact_matches(run, held[:NUM_QUESTIONS]), 4),
        "reward_margin": round(preference["reward_margin"], 4),
        "reward_accuracy": round(preference["reward_accuracy"], 4),
    }


def commonest(held: list[tuple[str, str]]) -> float:
    """Returns the exact matches of whoever always gives the answer that is right most often."""
    answers = [answer for _, answer in held[:NUM_QUESTIONS]]
    return Counter(answers).most_common(1)[0][1] / len(answers)


def exact_matches(run: Run, held: list[tuple[str, str]]) -> float:
    """Returns the share of questions whose greedy answer is the signature."""
    context = run.config.data.seq_len
    generator = Generator(run.model, run.state, run.trainer.data.tokenizer, context=context)
    greedy = Sampling(temperature=0.0)
    found = [
        generator.generate(
            f"<user>\n{question}\n<assistant>\n", max_tokens=LONGEST_ANSWER + 1, sampling=greedy
        )[0].text
        for question, _ in held
    ]
    return sum(one == answer for one, (_, answer) in zip(found, held, strict=True)) / len(held)


if __name__ == "__main__":
    main()
