"""`axcore train tiny`, as `make demo` runs it: time, memory, and what was learned.

Run: python benchmarks/demo.py
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _record import record


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "tiny"
        command = [sys.executable, "-m", "axcore", "train", "tiny", "--dir", str(run)]
        started = time.perf_counter()
        subprocess.run(command, check=True)
        elapsed = time.perf_counter() - started
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [line for line in lines if line["split"] == "validation"]
    speeds = sorted(line["tokens_per_s"] for line in lines if line["split"] == "train")
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    figures = {
        "in_all_s": round(elapsed, 1),
        "steps": validation[-1]["step"],
        "validation_nats_per_byte": {
            str(line["step"]): round(line["loss"], 4) for line in validation
        },
        "median_tokens_per_s": round(speeds[len(speeds) // 2]),
        "peak_memory_gib": round(peak_kib / 2**20, 3),
    }
    print(json.dumps(figures, indent=2))
    record("demo", figures)


if __name__ == "__main__":
    main()
