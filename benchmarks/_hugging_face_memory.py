"""A part of `hugging_face.py`: reads a model of Llama 2's size in a process of its own."""

import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer, Data
from axcore.interop import PretrainedCheckpoint, family_of
from axcore.interop.tensor_files import TensorSpec, shards, write_index
from axcore.models import llama2
from axcore.module import DTypes
from axcore.trainer import Trainer

MIB = 1 << 20
SHARD_BYTES = 5_000_000_000


def make_sparse(folder: Path, num_layers: int) -> int:
    """Write a model whose tensors are holes in files; returns the bytes of the largest."""
    cfg = update_config(llama2("7b"), {"decoder.stack.num_layers": num_layers})
    name, family, values = family_of(cfg)
    shapes = family.bind(cfg).shapes
    specs = [TensorSpec(one, shape, np.dtype("bfloat16")) for one, shape in shapes.items()]
    folder.mkdir()
    files = shards(specs, SHARD_BYTES)
    for file, held in files.items():
        _make_hole(folder / file, held)
    write_index(folder, files)
    (folder / "config.json").write_text(json.dumps({"model_type": name, **values}))
    return max(spec.nbytes for spec in specs)


def _make_hole(path: Path, specs: list[TensorSpec]) -> None:
    header, end = {}, 0
    for spec in specs:
        place = [end, end + spec.nbytes]
        header[spec.name] = {"dtype": "BF16", "shape": list(spec.shape), "data_offsets": place}
        end += spec.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


class PeakMemory(threading.Thread):
    """Samples the anonymous pages of this process until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = anonymous_bytes()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.005):
            self.peak = max(self.peak, anonymous_bytes())

    def stop(self) -> int:
        """Return how many bytes there were at most above those of the start."""
        self._stopped.set()
        self.join()
        return max(self.peak, anonymous_bytes()) - self.before


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def abstract_state(model: Any) -> Any:
    data = Data.Config(tokenizer=ByteTokenizer.Config(), seq_len=128, batch_size=8)
    cfg = Trainer.Config(model=model, data=data, max_steps=1000, mesh={"fsdp": 8})
    return cfg.build().compiler.abstract_state().model


def main(folder: str, num_layers: str = "32") -> None:
    target = Path(folder) / "seven_billion"
    largest = make_sparse(target, int(num_layers))
    published = PretrainedCheckpoint(target)
    cfg = evolve(published.config, dtypes=DTypes(param="bfloat16", compute="bfloat16"))
    wanted = abstract_state(cfg)
    memory, started = PeakMemory(), time.perf_counter()
    memory.start()
    state = published.read(cfg, wanted)
    seconds = time.perf_counter() - started
    peak = memory.stop()
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    figures = {
        "gibibytes": round(num_bytes / 2**30, 2),
        "devices": len(jax.devices()),
        "seconds": round(seconds, 1),
        "gb_per_s": round(num_bytes / 1e9 / seconds, 2),
        "largest_tensor_mib": round(largest / MIB),
        "peak_above_result_mib": round((peak - num_bytes) / MIB),
        "allowed_mib": round(1.5 * largest / MIB + 512),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
