"""Which parts of `tiny`'s train step take longer by XLA on a CPU than in PyTorch.

    python benchmarks/tiny_parts.py --torch-python VENV/bin/python   # without it, axcore alone

Each part is a program of its own, forward and backward, at `tiny`'s sizes: the projections of a
layer, attention, rotary positions, the gate of the feed-forward, a norm, the loss with the output
projection, the embedding, and the optimizer with clipping. They run by axcore's ops, in PyTorch,
and by `torch.compile`, in processes that take turns, each on one core with one thread: so the
figures, the least processor time of all rounds, times how often a step has the part, hold on a
machine that does other work too. The full step is in the table too, by axcore also with memory
given back as glibc does by default. What threads gain, `tiny_peers.py` shows.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import _tiny_worker as worker
from _record import record
from tiny_peers import Rival

PER_STEP = {
    "products": worker.LAYERS,
    "attention": worker.LAYERS,
    "rotary": worker.LAYERS,
    "gate": worker.LAYERS,
    "norm": 2 * worker.LAYERS + 1,
    "loss": 1,
    "embedding": 1,
    "optimizer": 1,
    "step": 1,
}
REPEATS = 5
VARIABLES = {"axcore_glibc_default": {"MALLOC_ARENA_TEST": "8"}}
"""What is tuned by hand, be it to the default, axcore leaves alone."""


def measured(rivals: dict[str, Rival], rounds: int) -> dict[str, Any]:
    """Return milliseconds of processor time a step, by part and rival."""
    turns = list(rivals.items())
    figures: dict[str, Any] = {}
    for part, times in PER_STEP.items():
        for turn in range(rounds):
            for _, rival in turns[turn % len(turns) :] + turns[: turn % len(turns)]:
                rival.run(REPEATS, part=part)
        scale = times / REPEATS * 1e3
        figures[part] = {
            name: round(scale * min(one["processor_s"] for one in rival.rounds[-rounds:]), 2)
            for name, rival in rivals.items()
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", type=Path, help="the Python of an environment of PyTorch")
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path("_parts_axcore.py"), Path("_parts_torch.py")
        here, torch = Path(sys.executable), given.torch_python
        commands = {"axcore": (here, ours), "axcore_glibc_default": (here, ours)}
        if torch is not None:
            commands["torch_eager"] = (torch, theirs)
            commands["torch_compile"] = (torch, theirs, Path("--compile"))
        rivals = {
            name: Rival(python, *map(str, rest), folder=folder, variables=VARIABLES.get(name, {}))
            for name, (python, *rest) in commands.items()
        }
        figures = measured(rivals, given.rounds)
        for rival in rivals.values():
            rival.stop()
    figures["sum"] = {
        name: round(sum(figures[part][name] for part in PER_STEP if part != "step"), 2)
        for name in rivals
    }
    for part, row in figures.items():
        shown = ", ".join(f"{name} {one:6.2f}" for name, one in row.items())
        print(f"{part:10} ms of processor a step: {shown}")
    record("tiny_parts", {"processor_ms_a_step": figures})


if __name__ == "__main__":
    main()
