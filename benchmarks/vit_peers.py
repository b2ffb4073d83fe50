"""A small ViT's train step against transformers' ViT by PyTorch, eager and by `torch.compile`.

    python benchmarks/vit_peers.py --torch-python VENV/bin/python

One model in all: sizes, pictures, AdamW, clipping, float32, as many threads as there are cores.
Rivals take turns as in `tiny_peers.py`. `pip install torch transformers numpy` for the rivals.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import _vit_worker as own
from _record import record
from tiny_peers import Rival


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="steps of each in a round")
    given = parser.parse_args()
    commands = {
        "axcore": (Path(sys.executable), "_vit_axcore.py"),
        "transformers_eager": (given.torch_python, "_vit_torch.py"),
        "transformers_compile": (given.torch_python, "_vit_torch.py", "--compile"),
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
        row["pictures_per_s"] = round(own.PICTURES / row["step_ms"] * 1e3)
        del row["tokens_per_s"]  # of another model's batch
        print(
            f"{name:22} {row['step_ms']:7.1f} ms a step, axcore by it {row['axcore_by_it']:.3f}, "
            f"{row['peak_mib']} MiB, first step {row['first_step_s']:.1f} s"
        )
    record("vit_peers", figures)


if __name__ == "__main__":
    main()
