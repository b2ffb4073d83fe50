"""Shuffled rows out of stores of any size: tokens a processor second, and memory without files.

    python benchmarks/data_order.py

Stores are hard links to one shard, as in `data.py`; batches have 8 rows. Each store is read by a
process of its own; the first 50 batches, which find where shards and groups are, count apart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _data_worker import BATCH_SIZE, _status, data_of
from _record import record
from data import draw, write_store

STORES = ((40_000, 500, 1), (40_000, 500, 1000), (1_000_000, 10, 100), (1_000_000, 10, 1000))


def measure(folder: Path, seq_len: int) -> dict[str, float]:
    """Return rates in tokens and memory in MiB."""
    batches = data_of(folder, seq_len).train()
    before, since = _status(), time.perf_counter()
    next(batches)
    first = time.perf_counter() - since
    rates = {}
    for name, count in (("first_50", 50), ("after_them", 300)):
        cpu = time.process_time()
        for _ in range(count):
            next(batches)
        rates[name] = round(BATCH_SIZE * seq_len * count / (time.process_time() - cpu))
    return {
        "first_batch_s": round(first, 3),
        "tokens_per_cpu_s": rates["after_them"],
        "tokens_per_cpu_s_first_50": rates["first_50"],
        "mib": round(_status()["RssAnon"] - before["RssAnon"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs=2, help="a store and seq_len, in this process")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(Path(given.measure[0]), int(given.measure[1]))))
        return
    figures: dict[str, Any] = {}
    for documents, mean, copies in STORES:
        with tempfile.TemporaryDirectory() as folder:
            write_store(Path(folder), draw(documents, mean), copies)
            for seq_len in (1024, 4096):
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", folder, str(seq_len)],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                key = f"{documents * copies:.0e} documents of {mean} tokens, rows of {seq_len}"
                figures[key] = json.loads(done.stdout.splitlines()[-1])
                print(key, figures[key], flush=True)
    print(record("data_order", figures))


if __name__ == "__main__":
    main()
