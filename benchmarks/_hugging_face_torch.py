"""A rival of `hugging_face.py`, run by a Python that has torch: times it loads and saves a file."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def timed(run: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Return the seconds of the wall clock and of processors, and the result."""
    torch.ones(1_200_000_000, dtype=torch.uint8)  # memory that was touched, as in hugging_face.py
    started, busy = time.perf_counter(), time.process_time()
    result = run()
    return (time.perf_counter() - started, time.process_time() - busy), result


def main(file: str, written: str) -> None:
    mapped, tensors = timed(lambda: load_file(file))
    copied, copies = timed(lambda: {name: one.clone() for name, one in tensors.items()})
    saved, _ = timed(lambda: save_file(copies, written))
    Path(written).unlink()
    found = {
        "torch_load_mapped": mapped,
        "torch_load_and_copy": [one + other for one, other in zip(mapped, copied, strict=True)],
        "torch_save": saved,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
