"""R16: kills while snapshots are written and copied; each next start restores from host memory.

    python benchmarks/reliability/memory_snapshots.py --kills 50

Two processes, each with a place in memory as on a host of its own, take one snapshot after the
other. At a random moment one of them is killed, every second time its host's memory is lost with
it, and the other one is ended as a supervisor does. The next start must restore a step that is no
older than the last that both had kept, with every bit as it was.

Its default form takes about 14 minutes on two cores.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import _paths  # noqa: F401 - finds what follows
from _result import record_promise
from several_processes import start_all

COUNT = 2
LIMIT_S = 300
RUN = {"id": "memory", "config": "one", "data": "one"}


def work(address: str, count: str, index: str, memory: str, log: str, megabytes: str) -> None:
    """Restore, says what it found, and take snapshots until it is killed."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from axcore.checkpoint import MemorySnapshots
    from axcore.distributed import TimeLimits, join_processes

    limits = TimeLimits(join_s=120, barrier_s=120, heartbeat_s=60)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    split, copied = (NamedSharding(mesh, PartitionSpec(*one)) for one in (("data",), ()))
    size = int(megabytes) * (1 << 18) * int(count)

    def values(step: Any) -> Any:
        wild = jnp.arange(size, dtype=jnp.uint32) * jnp.uint32(2654435761) + step
        return {"split": wild, "copied": jnp.arange(8.0) + step}

    make = jax.jit(values, out_shardings={"split": split, "copied": copied})
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), make(np.uint32(0))
    )

    def own_bits(state: Any) -> list[bytes]:
        shards = [one.addressable_shards[0] for one in jax.tree.leaves(state)]
        return [np.asarray(shard.data).tobytes() for shard in shards]

    def say(**said: Any) -> None:
        with open(f"{log}_{index}", "a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")

    cfg = MemorySnapshots.Config(every_steps=1, directory=memory)
    snapshots = MemorySnapshots(cfg, RUN)
    began = time.monotonic()
    snapshots.open(0)
    restored = snapshots.restore(template, newer_than=0)
    step = restored.step if restored else 0
    seconds = time.monotonic() - began
    is_equal = restored is None or own_bits(restored.state) == own_bits(make(np.uint32(step)))
    snapshots.delete_after(step)
    say(restored=step, is_equal=is_equal, seconds=seconds)
    while True:
        step += 1
        state = make(np.uint32(step))
        jax.block_until_ready(state)
        snapshots.wait()
        say(kept=step - 1)
        began = time.monotonic()
        snapshots.take(step, state, {"step": step})
        say(took=step, seconds=time.monotonic() - began)


class Kill(NamedTuple):
    """What a kill struck, and what the next start restored."""

    victim: int
    memory_lost: bool
    half_written: int
    newest_kept: int
    restored: int
    is_equal: bool
    seconds: float


def said(log: Path) -> list[list[dict[str, Any]]]:
    """Return what each process has said, full lines only."""
    texts = [Path(f"{log}_{index}") for index in range(COUNT)]
    lines = [text.read_text().split("\n")[:-1] if text.exists() else [] for text in texts]
    return [[json.loads(line) for line in one] for one in lines]


def wait_until(log: Path, name: str, least: int, processes: Any) -> list[list[dict[str, Any]]]:
    """Return what was said once each process has said a number that is no smaller."""
    end = time.monotonic() + LIMIT_S
    while True:
        found = said(log)
        if all(any(one.get(name, -1) >= least for one in lines) for lines in found):
            return found
        if time.monotonic() > end or any(one.poll() is not None for one in processes):
            ended = [(one.poll(), one.communicate()[1][-2000:]) for one in processes if one.poll()]
            raise RuntimeError(f"no {name} of {least}: {ended}")
        time.sleep(0.002)


def strike(scratch: Path, processes: Any, *, memory_lost: bool) -> tuple[int, int]:
    """Kill one process and then all; returns which, and how many parts were half written."""
    time.sleep(random.uniform(0, 1.0))
    victim = random.randrange(COUNT)
    os.kill(processes[victim].pid, signal.SIGSTOP)
    half_written = len(list(scratch.glob("host_*/*/*/*.incomplete")))
    if memory_lost:
        shutil.rmtree(scratch / f"host_{victim}")
    for process in (processes[victim], *processes):
        process.kill()
    for process in processes:
        process.communicate()
    return victim, half_written


def run_all(disk: Path, memory: Path, kills: int, megabytes: int) -> list[Kill]:
    done: list[Kill] = []
    struck: tuple[int, bool, int, int] | None = None
    for number in range(kills + 1):
        log = disk / f"log{number}"
        place = memory / "host_{process}"
        processes: list[subprocess.Popen[str]] = start_all(
            Path(__file__), place, log, megabytes, count=COUNT
        )
        found = wait_until(log, "restored", 0, processes)
        if struck:
            first = [lines[0] for lines in found]
            steps, equal = {one["restored"] for one in first}, all(one["is_equal"] for one in first)
            step = steps.pop() if len(steps) == 1 else -1
            done.append(Kill(*struck, step, equal, max(one["seconds"] for one in first)))
            print(number, done[-1], flush=True)
        base = max(line.get("restored", 0) for lines in found for line in lines)
        wait_until(log, "kept", base + 2, processes)
        memory_lost = number % 2 == 0
        victim, half_written = strike(memory, processes, memory_lost=memory_lost)
        kept = [max(line.get("kept", 0) for line in lines) for lines in said(log)]
        struck = victim, memory_lost, half_written, max(kept)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as ram:
        done = run_all(Path(disk), Path(ram), options.kills, options.megabytes)
    good = [one for one in done if one.is_equal and one.restored >= one.newest_kept > 0]
    slowest = max(one.seconds for one in done)
    text = (
        f"{len(good)} of {len(done)} kills restored the newest step that was kept, or a newer one, "
        "bit by bit from host memory; "
        f"{sum(one.memory_lost for one in done)} lost a host's memory, "
        f"{sum(one.half_written > 0 for one in done)} struck a copy half written; "
        f"{options.megabytes} MB a process restored in {slowest:.2f} s at most, all processes met"
    )
    seconds = time.monotonic() - began
    kills = [one._asdict() for one in done]
    print(text, record_promise("R16", tries=len(done), outcome=text, seconds=seconds, kills=kills))
    sys.exit(len(good) != len(done))


if __name__ == "__main__":
    is_child = len(sys.argv) > 1 and not sys.argv[1].startswith("-")
    work(*sys.argv[1:]) if is_child else main()
