"""One measurement of `data.py`, in a process of its own; prints JSON.

    python _data_worker.py axcore|grain|memory FOLDER
    DATASETS_PYTHON _data_worker.py datasets FOLDER
    python _data_worker.py build|tokenizers FOLDER

What `datasets` measures imports nothing of axcore, nor of jax.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LEN, BATCH_SIZE = 1024, 8
NUM_BATCHES = 600
STARTED = time.perf_counter()


def timed(batches: Iterator[Any]) -> dict[str, float]:
    """Return how many tokens a second batches bring, by the clock and by processor time."""
    for _ in range(20):
        next(batches)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(NUM_BATCHES):
        next(batches)
    tokens = NUM_BATCHES * SEQ_LEN * BATCH_SIZE
    return {
        "tokens_per_s": tokens / (time.perf_counter() - wall),
        "tokens_per_cpu_s": tokens / (time.process_time() - cpu),
    }


def data_of(folder: Path, seq_len: int = SEQ_LEN) -> Any:
    from axcore.data import Data, StoredSource

    cfg = Data.Config(
        source=StoredSource.Config(path=str(folder / "store")),
        seq_len=seq_len,
        batch_size=BATCH_SIZE,
        validation_fraction=0.0,
    )
    return cfg.build()


def axcore(folder: Path) -> dict[str, float]:
    return timed(data_of(folder).train())


class Documents:
    """Documents in memory-mapped files, as a source of grain."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        self.starts = np.load(folder / "starts.npy")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        begin, end = self.starts[index : index + 2]
        return {"tokens": np.asarray(self.tokens[begin:end], np.int32)}


def grain(folder: Path) -> dict[str, float]:
    """Concatenates and splits, which brings segment ids and positions, and makes batches."""
    import grain as library
    from grain.experimental import ConcatThenSplitIterDataset

    documents = library.MapDataset.source(Documents(folder)).shuffle(seed=0).repeat()
    rows = ConcatThenSplitIterDataset(
        documents.to_iter_dataset(), length_struct={"tokens": SEQ_LEN + 1}
    )
    return timed(iter(rows.batch(BATCH_SIZE)))


def datasets(folder: Path) -> dict[str, float]:
    """Pack as `run_clm.py` of transformers does, which is saved; then reads shuffled batches."""
    import datasets as library

    library.disable_progress_bars()
    path = folder / "datasets"
    if not path.exists():
        made = library.Dataset.from_generator(
            _rows, gen_kwargs={"folder": str(folder)}, cache_dir=str(folder / "cache")
        )
        made.map(_grouped, batched=True).save_to_disk(str(path))
    packed = library.load_from_disk(str(path)).shuffle(seed=0).with_format("numpy")

    def batches() -> Iterator[Any]:
        while True:
            yield from packed.iter(batch_size=BATCH_SIZE, drop_last_batch=True)

    return timed(batches())


def _rows(folder: str) -> Iterator[dict[str, Any]]:
    source = Documents(Path(folder))
    for index in range(len(source)):
        yield {"input_ids": source[index]["tokens"]}


def _grouped(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    joined = [token for tokens in examples["input_ids"] for token in tokens]
    whole = len(joined) // SEQ_LEN * SEQ_LEN
    rows = [joined[i : i + SEQ_LEN] for i in range(0, whole, SEQ_LEN)]
    return {"input_ids": rows, "labels": [row.copy() for row in rows]}


def memory(folder: Path) -> dict[str, float]:
    """Open a store and read batches; what counts is memory that is not a file's."""
    from axcore.data import open_store

    before, since = _status(), time.perf_counter()
    store = open_store(folder / "store")
    opened_s, opened = time.perf_counter() - since, _status()
    batches = data_of(folder).train()
    for _ in range(300):
        next(batches)
    after = _status()
    return {
        "documents": store.splits["train"].num_documents,
        "tokens": store.splits["train"].num_tokens,
        "open_s": opened_s,
        "open_mib": opened["RssAnon"] - before["RssAnon"],
        "read_300_batches_mib": after["RssAnon"] - before["RssAnon"],
        "process_and_mapped_files_mib": after["RssAnon"] + after["RssFile"],
    }


def _status() -> dict[str, float]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith("Rss"))
    return {name.rstrip(":"): int(kib) / 1024 for name, kib, *_ in fields}


def build(folder: Path) -> dict[str, float]:
    from axcore.data import HuggingFaceTokenizer, JsonLines, build_store

    shutil.rmtree(folder / "built", ignore_errors=True)
    tokenizer = HuggingFaceTokenizer.Config(path=str(folder / "tokenizer.json"), eos_token="<eos>")
    source = JsonLines.Config(folder=str(folder / "lines")).build()

    def run() -> int:
        store = build_store(source, tokenizer, folder / "built", validation_fraction=0.0)
        return store.splits["train"].num_tokens

    return _counted(run)


def tokenizers(folder: Path) -> dict[str, float]:
    """Encode the same texts, in memory, by as many threads as there are cores."""
    import tokenizers as library

    tokenizer = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [
        json.loads(line)["text"]
        for file in sorted((folder / "lines").iterdir())
        for line in file.open("rb")
    ]

    def run() -> int:
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return sum(map(len, encoded)) + len(texts)

    return _counted(run)


def _counted(run: Callable[[], int]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    tokens = run()
    wall, cpu = time.perf_counter() - wall, sum(os.times()[:4]) - cpu
    return {"tokens": tokens, "tokens_per_s": tokens / wall, "tokens_per_cpu_s": tokens / cpu}


if __name__ == "__main__":
    measure = globals()[sys.argv[1]]
    print(json.dumps(measure(Path(sys.argv[2]))))
