"""How long a training command takes to its first step where the store contains 10^10 tokens.

    python benchmarks/data_start.py

`axcore train llama2-7b` reads a store of 2 x 10^7 documents of log-normal lengths, 500 tokens on
average. Its files of tokens are sparse: 20 GB to every reader, next to nothing on the disk. Where
documents begin is written in full, once, and linked for each shard. The model is made small, so
that what is timed is the start. Rounds alternate between no compiled programs at hand and those of
a start before; the first step is done when its loss is printed. A store of 10^6 tokens next to it
shows what its size costs. The kernel's file cache is warm, but for what is said to be cold.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from _record import record

from axcore.data import HuggingFaceTokenizer
from axcore.data.store.manifest import Manifest, copy_tokenizer, tokenizer_digest
from axcore.data.store.shard import PAIRS, TOKENS, ShardInfo

SMALL = (
    "model.vocab_size=512",
    "model.dim=64",
    "model.decoder.stack.num_layers=2",
    "model.decoder.stack.layer.attention.num_heads=4",
    "model.decoder.stack.layer.feed_forward.hidden_dim=128",
    "data.batch_size=4",
    "data.seq_len=512",
    "logging.every_steps=1",
)
DOCUMENTS_A_SHARD, MEAN = 1_000_000, 500


def write_tokenizer(path: Path) -> HuggingFaceTokenizer.Config:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["some text"], trainer)
    tokenizer.save(str(path))
    return HuggingFaceTokenizer.Config(path=str(path), eos_token="</s>", bos_token="<s>")


def write_store(
    folder: Path, tokenizer: HuggingFaceTokenizer.Config, *, documents: int, shards: int
) -> int:
    """Write a store whose tokens are all 0; returns how many there are."""
    files = folder / "shards"
    files.mkdir(parents=True)
    drawn = np.random.default_rng(0).lognormal(np.log(MEAN) - 0.5, 1, documents)
    lengths = np.maximum(2, drawn).astype(np.int64)
    np.concatenate([[0], np.cumsum(lengths - 1)]).astype("<i8").tofile(files / f"0{PAIRS}")
    info = ShardInfo("0", documents, int(lengths.sum()), "synthetic")
    for shard in range(shards):
        if shard:
            os.link(files / f"0{PAIRS}", files / f"{shard}{PAIRS}")
        with open(files / f"{shard}{TOKENS}", "wb") as file:
            file.truncate(2 * info.tokens)
    one = attrs.evolve(info, name="held", documents=2, tokens=1000)
    np.array([0, 499, 998], "<i8").tofile(files / f"held{PAIRS}")
    (files / f"held{TOKENS}").write_bytes(bytes(2000))
    Manifest(
        source="synthetic",
        source_digest="",
        tokenizer=copy_tokenizer(tokenizer, folder),
        tokenizer_digest=tokenizer_digest(tokenizer),
        validation_fraction=0.001,
        dtype="<u2",
        records=documents * shards + 2,
        bad_records=0,
        characters=1,
        splits={
            "train": tuple(attrs.evolve(info, name=str(shard)) for shard in range(shards)),
            "validation": (one,),
        },
    ).write(folder)
    return info.tokens * shards


def first_step(folder: Path, cache: Path) -> dict[str, float]:
    """Return the seconds from the command to the loss of its first step."""
    settings = [f"data.tokenizer.path={folder.parent / 'tokenizer.json'}", *SMALL]
    with tempfile.TemporaryDirectory() as run:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "axcore", "train", "llama2-7b", "--dir", run]
            + [part for setting in settings for part in ("--set", setting)]
            + ["--modify", f"token_store(path={folder})"],
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            is_there = any(line.startswith("step 1 ") for line in lines)
            in_all_s = time.perf_counter() - started
            process.kill()
        used = os.wait4(process.pid, 0)[2]
    assert is_there, "training ended before its first step"
    return {"in_all_s": in_all_s, "processor_s": used.ru_utime + used.ru_stime}


def forget(folder: Path) -> None:
    """Ask the kernel to forget what it keeps of a store's files."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        tokenizer = write_tokenizer(root / "tokenizer.json")
        sizes = {"large": (DOCUMENTS_A_SHARD, 20), "small": (2000, 1)}
        tokens = {
            name: write_store(root / name, tokenizer, documents=documents, shards=shards)
            for name, (documents, shards) in sizes.items()
        }
        files = [path.stat() for path in (root / "large").rglob("*") if path.is_file()]
        seconds: dict[str, list[dict[str, float]]] = {}
        for turn in range(rounds):
            cache = root / f"cache {turn}"
            for name, key in (
                ("large", "large, nothing compiled"),
                ("large", "large"),
                ("small", "small"),
                ("large", "large, no file of the store in memory"),
            ):
                if "no file" in key:
                    forget(root / name)
                seconds.setdefault(key, []).append(first_step(root / name, cache))
                print(key, seconds[key][-1], flush=True)
        figures: dict[str, Any] = {
            "tokens": tokens,
            "gb_to_readers": round(sum(one.st_size for one in files) / 1e9, 1),
            "gb_on_the_disk": round(sum({o.st_ino: o.st_blocks for o in files}.values()) / 2e6, 2),
            "seconds_to_first_step": {
                key: {
                    name: round(statistics.median(one[name] for one in every), 2)
                    for name in every[0]
                }
                for key, every in seconds.items()
            },
            "load_average": os.getloadavg(),
        }
    print(json.dumps(figures, indent=2))
    print(record("data_start", figures))


if __name__ == "__main__":
    main()
