"""A rival of `hugging_face.py`, run by a Python that has torch: times it loads and saves a file."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - its import is not timed
from safetensors.torch import load_file, save_file


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def main(file: str, written: str) -> None:
    mapped_s, tensors = timed(lambda: load_file(file))
    copied_s, copies = timed(lambda: {name: one.clone() for name, one in tensors.items()})
    saved_s, _ = timed(lambda: save_file(copies, written))
    Path(written).unlink()
    found = {
        "torch_load_mapped": mapped_s,
        "torch_load_and_copy": mapped_s + copied_s,
        "torch_save": saved_s,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
