"""What a token takes on a CPU with weights in 8 and 4 bits, compared with llama.cpp.

    python benchmarks/quantized_peers.py --gguf-python VENV/bin/python [--rounds 5]

The model is that of `serving.py` with 125 million random numbers. axcore's engine has weights in
int8 and int4 and keys and values in float16; llama.cpp has its own files of Q8_0, Q4_0 and Q4_K_M,
and caches in float16, its default; both also serve in full precision. Each is a process with as
many threads as there are cores. All take turns, the first turn is not counted, a figure is the
median over turns, and a ratio the median over turns of axcore's time by the rival's.
`--gguf-python` is as for `serving.py`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _record import record
from _serving_rival import HERE, Rival

MODEL = "125M"
OURS = {"float32": "none", "int8": "int8", "int4": "int4"}
RIVALS = {"float32": ("F32",), "int8": ("Q8_0",), "int4": ("Q4_0", "Q4_K_M")}
"""What llama.cpp has of as many bits."""


def files(python: str, folder: Path) -> dict[str, str]:
    """Write the model, and llama.cpp's files of it, by type."""
    subprocess.run([sys.executable, HERE / "_serving_models.py", MODEL, folder], check=True)
    whole = folder / f"{MODEL}.gguf"
    found = {"F32": str(whole)}
    for kind in ("Q8_0", "Q4_0", "Q4_K_M"):
        found[kind] = str(folder / f"{kind}.gguf")
        command = [python, HERE / "_quantize_llama.py", whole, found[kind], kind]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf-python", required=True, help="the Python of llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="of a turn")
    given = parser.parse_args()
    threads, ours = str(os.cpu_count()), os.environ.get("PYTHONPATH", "")
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        gguf = files(given.gguf_python, folder)
        rivals = {
            f"axcore_{name}": Rival(
                sys.executable,
                "_serving_axcore.py",
                str(folder / MODEL),
                "--half",
                weights,
                paths=ours,
            )
            for name, weights in OURS.items()
        }
        rivals |= {
            f"llama.cpp_{kind}": Rival(given.gguf_python, "_serving_llama.py", path, threads)
            for kind, path in gguf.items()
        }
        figures: dict[str, Any] = {"settings": {n: one.start for n, one in rivals.items()}}
        for rows in (1, 8):
            figures[f"{rows}_rows"] = measure(rivals, rows, given)
            print(rows, "rows:", figures[f"{rows}_rows"], flush=True)
        for one in rivals.values():
            one.stop()
    print("written to", record("quantized_peers", figures))


def measure(rivals: dict[str, Rival], rows: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds a token of each, and axcore's by those of its rivals."""
    turns: list[dict[str, float]] = []
    for turn in range(given.rounds + 1):
        asked = {"batch": rows, "count": given.tokens, "seed": turn}
        found = {name: rival.ask("decode", **asked) for name, rival in rivals.items()}
        if missing := [name for name, one in found.items() if one is None]:
            sys.exit(f"{', '.join(missing)} gave no figure")
        if turn > 0:
            turns.append({name: one["ms"] for name, one in found.items() if one is not None})
    summary: dict[str, Any] = {
        name: round(statistics.median(turn[name] for turn in turns), 2) for name in rivals
    }
    for name, kinds in RIVALS.items():
        for kind in kinds:
            of = [turn[f"axcore_{name}"] / turn[f"llama.cpp_{kind}"] for turn in turns]
            summary[f"{name}_by_{kind}"] = round(statistics.median(of), 3)
    return summary


if __name__ == "__main__":
    main()
