"""What it costs to pack 10^6 to 10^8 documents without cutting them, and what memory it takes.

    python benchmarks/data_index.py

Stores are hard links to one shard of 10^6 documents, as in `data.py`. The index of `best_fit` is
made once a store and sequence length, and kept; each size is a process of its own, which makes it,
and another, which opens it. Memory is that which is not a file's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _data_worker import _status
from _record import record
from data import draw, write_store

SEQ_LEN = 4096


def measure(folder: Path) -> dict[str, float]:
    """Return seconds and MiB of the layout of a store, made or found, and of 1000 of its rows."""
    from axcore.data import open_store
    from axcore.data.packing.row_layout import row_layout
    from axcore.data.packing.shuffling import DocumentShuffle

    store = open_store(folder / "store").splits["train"]
    shuffle = DocumentShuffle("0", is_each_epoch=True)
    before, since, cpu = _status(), time.perf_counter(), time.process_time()
    rows = row_layout(store, SEQ_LEN, "best_fit", cache=folder / "cache", shuffle=shuffle)
    took, used = time.perf_counter() - since, time.process_time() - cpu
    for row in range(0, 1000 * 7919, 7919):
        rows.pairs(row)
    pairs = store.num_tokens - store.num_documents
    return {
        "seconds": round(took, 2),
        "processor_s": round(used, 2),
        "mib": round(_status()["RssAnon"] - before["RssAnon"], 1),
        "share_filled": round(pairs / (len(rows) * SEQ_LEN), 5),
    }


def in_process(folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", type=Path, help="measure this store only, in this process")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    figures: dict[str, Any] = {}
    documents = draw(1_000_000, 10)
    for copies in (1, 10, 100):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_store(folder, documents, copies)
            made, found = in_process(folder), in_process(folder)
            (index,) = (folder / "cache").glob("*.index")
            figures[f"{copies * len(documents):.0e} documents"] = {
                "made": made,
                "found": found,
                "bytes_a_document": round(index.stat().st_size / (copies * len(documents)), 2),
            }
        print(json.dumps(figures, indent=2), flush=True)
    print(record("data_index", figures))


if __name__ == "__main__":
    main()
