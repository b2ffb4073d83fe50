"""A small model's train step by axcore against the same one by PyTorch, eager and compiled."""

import argparse
import sys
import tempfile
from pathlib import Path

from _record import record
from tiny_peers import Rival


def main(description: str, model: str, library: str, *, rows: int, unit: str) -> None:
    """Race the rivals in turn, print what was measured, and record it as `MODEL_peers`.

    Args:
        description: For `--help`.
        model: Its scripts are `_MODEL_axcore.py` and `_MODEL_torch.py`.
        library: Has the model of PyTorch.
        rows: Of a batch.
        unit: What a row is, in the plural.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--torch-python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="steps of each in a round")
    given = parser.parse_args()
    by_torch = (given.torch_python, f"_{model}_torch.py")
    commands = {
        "axcore": (Path(sys.executable), f"_{model}_axcore.py"),
        f"{library}_eager": by_torch,
        f"{library}_compile": (*by_torch, "--compile"),
    }
    with tempfile.TemporaryDirectory() as folder:
        rivals = {
            name: Rival(python, *command, folder=folder)
            for name, (python, *command) in commands.items()
        }
        names = list(rivals)
        for turn in range(given.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                rivals[name].run(given.steps)
        for rival in rivals.values():
            rival.stop()
    counts = {rival.start["num_params"] for rival in rivals.values()}
    assert len(counts) == 1, f"the models differ in size: {counts}"
    figures = {name: one.figures(rivals["axcore"], given.steps) for name, one in rivals.items()}
    for name, row in figures.items():
        row[f"{unit}_per_s"] = round(rows / row["step_ms"] * 1e3, 1)
        del row["tokens_per_s"]  # of another model's batch
        print(
            f"{name:22} {row['step_ms']:7.1f} ms a step, axcore by it {row['axcore_by_it']:.3f}"
            f" ({row['axcore_by_it_processor']:.3f} of processor), {row['peak_mib']} MiB,"
            f" first step {row['first_step_s']:.1f} s, losses {row['losses']}"
        )
    record(f"{model}_peers", figures)
