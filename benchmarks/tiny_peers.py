"""`tiny`'s train step against the same model in what users would pick instead.

    python benchmarks/tiny_peers.py --torch-python VENV/bin/python --peers-python VENV/bin/python \
        --levanter-python VENV/bin/python

One model in all: sizes, batch, AdamW, clipping, float32, as many threads as there are cores. In the
style of nanoGPT by PyTorch, eager and by `torch.compile`; in Flax NNX and in Equinox, whose steps
are jitted as their documentation has them; Levanter's Llama; and `tiny` by axcore. Every rival is a
process of its own that waits for its turn; rounds are interleaved, and a ratio is the median over
rounds of axcore's time by the rival's. The first step is timed from the start of the process, one
process after the other, with no compiled program at hand. A rival without its Python is left out:
`pip install torch numpy`, `pip install jax optax flax equinox`, and for Levanter
`uv pip install --prerelease allow levanter gitpython chex`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _tiny_worker as worker
from _record import record

HERE = Path(__file__).parent


class Rival:
    """A process that steps when it is asked to."""

    def __init__(
        self, python: Path, *command: str, folder: str, variables: Mapping[str, str] = {}
    ) -> None:
        """Start it, and wait for its first step.

        Args:
            python: Of its environment.
            command: Its script, and arguments.
            folder: What compilers keep goes here, so that nothing is found from before.
            variables: Of its environment, in addition to those of this process.
        """
        caches = ("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
        places = {"TORCHINDUCTOR_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        kept = {name: value for name, value in os.environ.items() if name not in caches}
        own = {"TINY_STARTED": str(time.time()), "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [str(python), str(HERE / command[0]), *command[1:]],
            env=kept | places | own | dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start = self._answer()
        self.rounds: list[dict[str, float]] = []

    def run(self, steps: int, *, part: str = "") -> None:
        """Run steps, or a part of them where the process has parts, and keep what they cost."""
        assert self._process.stdin is not None
        print(part, steps, file=self._process.stdin, flush=True)
        answer = self._answer()
        self.rounds.append(answer | {"step_s": answer["seconds"] / steps})

    def stop(self) -> None:
        """End it."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended; its errors are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def figures(self, ours: "Rival", steps: int) -> dict[str, Any]:
        """Return what was measured, and axcore's time by its own."""
        of = {name: [one[name] for one in self.rounds] for name in ("step_s", "processor_s")}
        ratios = [
            {name: mine[name] / theirs[name] for name in of}
            for mine, theirs in zip(ours.rounds, self.rounds, strict=True)
        ]
        step_s = statistics.median(of["step_s"])
        return {
            "tokens_per_s": round(worker.ROWS * worker.TOKENS / step_s),
            "step_ms": round(step_s * 1e3, 1),
            "fastest_step_ms": round(min(of["step_s"]) * 1e3, 1),
            "processor_ms": round(statistics.median(of["processor_s"]) / steps * 1e3, 1),
            "axcore_by_it": round(statistics.median(one["step_s"] for one in ratios), 3),
            "axcore_by_it_processor": round(
                statistics.median(one["processor_s"] for one in ratios), 3
            ),
            "peak_mib": round(self.rounds[-1]["peak_mib"]),
            "first_step_s": round(self.start["first_step_s"], 2),
            "num_params": self.start["num_params"],
            "losses": [round(self.start["first_loss"], 4), round(self.rounds[-1]["loss"], 4)],
            "versions": self.start["versions"],
        }


def rivals(
    torch: Path | None, peers: Path | None, levanter: Path | None
) -> dict[str, tuple[Path, ...]]:
    """Return the Python and the command of each."""
    found: dict[str, Any] = {"axcore": (Path(sys.executable), "_tiny_axcore.py")}
    if torch is not None:
        found["torch_eager"] = (torch, "_tiny_torch.py")
        found["torch_compile"] = (torch, "_tiny_torch.py", "--compile")
    if peers is not None:
        found["flax_nnx"] = (peers, "_tiny_flax.py")
        found["equinox"] = (peers, "_tiny_equinox.py")
    if levanter is not None:
        found["levanter"] = (levanter, "_tiny_levanter.py")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", type=Path, help="the Python of an environment of PyTorch")
    parser.add_argument("--peers-python", type=Path, help="that of Flax and Equinox")
    parser.add_argument("--levanter-python", type=Path, help="that of Levanter")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="steps of each in a round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = {
            name: Rival(*command, folder=folder)  # type: ignore[arg-type]
            for name, command in rivals(
                given.torch_python, given.peers_python, given.levanter_python
            ).items()
        }
        names = list(started)
        for turn in range(given.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                started[name].run(given.steps)
        for rival in started.values():
            rival.stop()
    counts = {rival.start["num_params"] for rival in started.values()}
    assert len(counts) == 1, f"the models differ in size: {counts}"
    figures = {name: one.figures(started["axcore"], given.steps) for name, one in started.items()}
    for name, row in figures.items():
        print(
            f"{name:14} {row['step_ms']:7.1f} ms a step, {row['processor_ms']:7.1f} of processor,"
            f" axcore by it {row['axcore_by_it']:.3f} ({row['axcore_by_it_processor']:.3f}),"
            f" {row['peak_mib']} MiB, first step {row['first_step_s']:.1f} s"
        )
    record("tiny_peers", figures)


if __name__ == "__main__":
    main()
