"""How fast batches come out of a token store, how fast one is built, and what memory it takes.

    python benchmarks/data.py --datasets-python VENV/bin/python   # without it, axcore and grain

Batches are 8 x 1024 tokens of documents of log-normal lengths, 500 tokens on average, by one
process: from a store; by grain's own concatenate-and-split over the same documents; and by
`datasets` of Hugging Face, whose rows were packed before as transformers' `run_clm.py` does.
Builds read JSON lines, compared with `tokenizers` that encodes the same texts in memory with all
cores. Each figure is the median of rounds that take turns, each in a process of its own; processor
time holds on a machine that does other work, too.

Stores of 10^8 and 10^9 documents are hard links to one shard of 10^6, so that they fit on the disk:
what opens and reads them does not know.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from _record import record

from axcore.data import ByteTokenizer, StandardLibrary
from axcore.data.packing.packing import TokenStore
from axcore.data.packing.row_layout import row_layout
from axcore.data.store.manifest import Manifest, copy_tokenizer, tokenizer_digest
from axcore.data.store.shard import PAIRS, TOKENS, ShardWriter

WORKER = Path(__file__).with_name("_data_worker.py")
DTYPE = np.dtype("<u2")


def draw(num_documents: int, mean: float) -> list[np.ndarray[Any, Any]]:
    """Return documents of log-normal lengths."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(2, rng.lognormal(np.log(mean) - 0.5, 1, num_documents)).astype(int)
    tokens = rng.integers(0, 256, lengths.sum()).astype(DTYPE)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def write_store(folder: Path, documents: list[np.ndarray[Any, Any]], copies: int = 1) -> None:
    """Write a store of one shard, and links it so many times less one."""
    shards = folder / "store" / "shards"
    shards.mkdir(parents=True)
    with ShardWriter(shards, "0", DTYPE) as writer:
        writer.add(documents)
        info = writer.info()
    for copy in range(1, copies):
        for suffix in (TOKENS, PAIRS):
            os.link(shards / f"0{suffix}", shards / f"{copy}{suffix}")
    cfg = ByteTokenizer.Config()
    Manifest(
        source="synthetic",
        source_digest="",
        tokenizer=copy_tokenizer(cfg, folder / "store"),
        tokenizer_digest=tokenizer_digest(cfg),
        validation_fraction=0.0,
        dtype=DTYPE.str,
        records=len(documents) * copies,
        bad_records=0,
        characters=1,
        splits={
            "train": tuple(attrs.evolve(info, name=str(copy)) for copy in range(copies)),
            "validation": (),
        },
    ).write(folder / "store")


def run(python: str, what: str, folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [python, str(WORKER), what, str(folder)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turns(pythons: dict[str, str], folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians of several measurements, made one after another, so many times."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    for _ in range(rounds):
        for name, python in pythons.items():
            found[name].append(run(python, name, folder))
    return {
        name: {key: round(statistics.median(one[key] for one in every)) for key in every[0]}
        for name, every in found.items()
    }


def packed(folder: Path, rounds: int, datasets_python: str | None) -> dict[str, Any]:
    documents = draw(40_000, 500)
    write_store(folder, documents)
    np.save(folder / "tokens.npy", np.concatenate(documents))
    np.save(folder / "starts.npy", np.cumsum([0, *map(len, documents)]))
    pythons = {"axcore": sys.executable, "grain": sys.executable}
    if datasets_python:
        pythons["datasets"] = datasets_python
        run(datasets_python, "datasets", folder)  # packs
    return in_turns(pythons, folder, rounds)


def build(folder: Path, rounds: int) -> dict[str, Any]:
    import tokenizers

    texts = [document.text for document in StandardLibrary.Config().build().documents()]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=8192, special_tokens=["<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts[::4], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "lines").mkdir()
    for copy in range(8):
        lines = "".join(json.dumps({"text": f"# {copy}\n{text}"}) + "\n" for text in texts)
        (folder / "lines" / f"{copy}.jsonl").write_text(lines)
    found: dict[str, Any] = in_turns(
        {"build": sys.executable, "tokenizers": sys.executable}, folder, rounds
    )
    for key in ("tokens_per_s", "tokens_per_cpu_s"):
        ratio = found["build"][key] / found["tokenizers"][key]
        found[f"ratio_of_{key}"] = round(ratio, 3)
    return found


def memory(folder: Path, rounds: int) -> dict[str, Any]:
    documents = draw(1_000_000, 10)
    found = {}
    for copies in (1, 100, 1000):
        own = folder / str(copies)
        write_store(own, documents, copies)
        every = [run(sys.executable, "memory", own) for _ in range(rounds)]
        found[f"{copies * len(documents):.0e} documents"] = {
            key: round(statistics.median(one[key] for one in every), 3) for key in every[0]
        }
    return found


def packing(folder: Path, rounds: int) -> dict[str, Any]:
    """Return how full rows are, of documents of log-normal lengths."""
    documents = draw(200_000, 500)
    store = TokenStore.of(documents)
    pairs = store.num_tokens - store.num_documents
    found = {}
    for seq_len in (1024, 2048, 4096):
        for name in ("concatenate", "best_fit", "one_document"):
            rows = len(row_layout(store, seq_len, name, cache=folder))  # type: ignore[arg-type]
            found[f"{name} {seq_len}"] = round(pairs / (rows * seq_len), 4)
    return found


def versions(datasets_python: str | None) -> dict[str, str]:
    """Return those of what axcore is compared with."""
    found = {name: version(name) for name in ("grain", "tokenizers")}
    if datasets_python:
        program = "import datasets; print(datasets.__version__)"
        done = subprocess.run([datasets_python, "-c", program], check=True, capture_output=True)
        found["datasets"] = done.stdout.decode().strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets-python", help="the Python of an environment with `datasets`")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    figures: dict[str, Any] = {"versions": versions(given.datasets_python)}
    with tempfile.TemporaryDirectory() as folder:
        for part in (packed, build, memory, packing):
            own = Path(folder) / part.__name__
            own.mkdir()
            more = (given.datasets_python,) if part is packed else ()
            figures[part.__name__] = part(own, given.rounds, *more)
            print(part.__name__, json.dumps(figures[part.__name__], indent=2), flush=True)
    print(record("data", figures))


if __name__ == "__main__":
    main()
