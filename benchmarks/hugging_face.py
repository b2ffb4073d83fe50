"""How fast published weights come in and go out, and in how much memory.

    python benchmarks/hugging_face.py [--directory FOLDER] [--torch-python VENV/bin/python]
                                      [--seven-billion]

A model of 1 GB in bfloat16 with a tiny vocabulary is written and read by axcore, by safetensors for
numpy, and by safetensors for PyTorch where the Python of an environment with both is named, or
`make parity` made one. Files are in the page cache, nobody waits for the disk, and memory was
touched before. Rivals take turns; figures are medians over rounds. axcore's include what it does
too: it transposes, stacks layers, and looks for what is not finite. PyTorch maps a file and
reads no number of it; so copies of its tensors are timed as well. Wall time depends on what else
runs; so the time of processors, of all threads and of the kernel, is compared too.

`--seven-billion` reads a model of Llama 2's size, 12.6 GiB of zeros in sparse files, onto 8 fake
devices in a process of its own. Needs 16 GiB of free memory. Peak memory is that of anonymous
pages, sampled; pages of mapped files, which the system takes back as it needs to, come on top.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from _record import record

import axcore as ax
from axcore.models import transformer
from axcore.module import ParamSpec

HERE = Path(__file__).parent
ROUNDS = 5
MODEL = transformer(vocab_size=264, dim=2048, num_layers=8, num_heads=16, hidden_dim=8192)
FILE = "model.safetensors"
SETTLED_BYTES = 1_200_000_000
PARITY_PYTHON = HERE.parent / ".venv-parity" / "bin" / "python"
"""That of the environment of `make parity`."""


def make_state() -> Any:
    """Return a state of the model, of numbers that are quick to sample."""
    draw = np.random.default_rng(0)

    def drawn(spec: ParamSpec) -> Any:
        return jnp.asarray(draw.random(spec.shape, dtype=np.float32).astype(jnp.bfloat16))

    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    return jax.tree.map(drawn, MODEL.build().param_specs(), is_leaf=is_spec)


Times = tuple[float, float]
"""Seconds of the wall clock, and of processors."""


def timed(run: Callable[[], Any]) -> Times:
    settle()
    started, busy = time.perf_counter(), time.process_time()
    result = run()
    times = time.perf_counter() - started, time.process_time() - busy
    del result
    return times


def settle() -> None:
    """Touches and frees as much memory as a rival needs.

    Who is first to take pages that the kernel has to find and join, or a hypervisor to give, waits
    for seconds, and the next one finds them free.
    """
    np.ones(SETTLED_BYTES, np.uint8)


def measure_gigabyte(folder: Path, torch_python: Path | str | None) -> dict[str, Any]:
    """Return the medians of all rivals, as GB/s, and axcore's times by theirs."""
    state = make_state()
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    ax.to_hugging_face(folder / "model", MODEL, state)
    file, written = folder / "model" / FILE, folder / "written"
    tensors = safetensors.numpy.load_file(file)
    times: dict[str, list[Times]] = {}

    def keep(name: str, seconds: Times) -> None:
        times.setdefault(name, []).append(seconds)

    for _ in range(ROUNDS):
        keep("axcore_import", timed(lambda: ax.from_hugging_face(folder / "model")))
        keep("numpy_load", timed(lambda: safetensors.numpy.load_file(file)))
        keep("axcore_export", timed(lambda: ax.to_hugging_face(written, MODEL, state)))
        shutil.rmtree(written)
        keep("numpy_save", timed(lambda: safetensors.numpy.save_file(tensors, written)))
        written.unlink()
        for name, seconds in _torch(torch_python, file, written).items():
            keep(name, seconds)
    wall, busy = ({n: [one[i] for one in found] for n, found in times.items()} for i in (0, 1))
    return {
        "gigabytes": round(num_bytes / 1e9, 3),
        "rounds": ROUNDS,
        "gb_per_s": {
            name: round(num_bytes / 1e9 / statistics.median(found), 2)
            for name, found in wall.items()
        },
        "processor_s": {name: round(statistics.median(one), 2) for name, one in busy.items()},
        "import_by_rival": _ratios(wall, "axcore_import", "load"),
        "import_by_rival_processor": _ratios(busy, "axcore_import", "load"),
        "export_by_rival": _ratios(wall, "axcore_export", "save"),
        "export_by_rival_processor": _ratios(busy, "axcore_export", "save"),
    }


def _torch(python: Path | str | None, file: Path, written: Path) -> dict[str, Times]:
    if python is None:
        return {}
    command = [str(python), str(HERE / "_hugging_face_torch.py"), str(file), str(written)]
    found: dict[str, Times] = json.loads(subprocess.check_output(command, text=True))
    return found


def _ratios(times: dict[str, list[float]], ours: str, kind: str) -> dict[str, float]:
    """Return the median over rounds of axcore's time by that of each rival that reads numbers."""
    pairs = {name: zip(times[ours], found, strict=True) for name, found in times.items()}
    return {
        name: round(statistics.median(mine / theirs for mine, theirs in found), 2)
        for name, found in pairs.items()
        if kind in name.split("_") and "mapped" not in name
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory")
    parser.add_argument("--torch-python", default=PARITY_PYTHON if PARITY_PYTHON.exists() else None)
    parser.add_argument("--seven-billion", action="store_true")
    options = parser.parse_args()
    figures: dict[str, Any] = {"safetensors": version("safetensors")}
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        figures["gigabyte"] = measure_gigabyte(Path(folder), options.torch_python)
        if options.seven_billion:
            command = [sys.executable, str(HERE / "_hugging_face_memory.py"), folder]
            memory = json.loads(subprocess.check_output(command, text=True))
            print("written to", record("hugging_face_memory", memory))
    print(json.dumps(figures, indent=2))
    print("written to", record("hugging_face", figures))


if __name__ == "__main__":
    main()
