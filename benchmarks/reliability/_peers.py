"""One try of each system of `recovery_peers.py`: start a run, kill one process, wait for steps."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import _paths  # noqa: F401 - first
from _orbax_run import ROWS
from _step_log import read_steps
from quick_flags import compile_cache, quick_environment
from supervised_kills import children, events, start, wait_for, when, write_experiment

from axcore.trainer.run_directory.saved_steps import SAVED_STEPS_NAME

T = TypeVar("T")

HERE = Path(__file__).parent
LIMIT_S = 120
FIRST_STEPS = 25
"""Steps before a kill may come: two checkpoints are due by then."""


class Try(NamedTuple):
    """What one try is given.

    Attributes:
        folder: Of this system; programs that it compiles stay there for the next try.
        number: Counts tries.
        processes: Of the run.
        rank: Of the process to kill.
        wait_s: Between the moment when all is ready and the kill.
    """

    folder: Path
    number: int
    processes: int
    rank: int
    wait_s: float

    def make_run(self) -> Path:
        """Return a new folder for this try alone."""
        run = self.folder / f"try_{self.number}"
        run.mkdir(parents=True)
        return run


def kill_axcore(one: Try, *, policy: Sequence[str] = (), spares: bool) -> dict[str, Any]:
    """Kill a trainer of `axcore launch local`; the supervisor's events have the times."""
    one.folder.mkdir(parents=True, exist_ok=True)
    write_experiment(one.folder, **{"data.batch_size": ROWS * one.processes, "mesh": {"data": -1}})
    before = len(events(one.folder, "stepping"))
    choice = ("--policy", f"standby_workers={str(spares).lower()}")
    with ended(start(one.folder, *choice, *policy, processes=one.processes)) as supervisor:
        wait_for(one.folder, "stepping", before + 1)
        pids = events(one.folder, "processes_started")[-1]["pids"]
        if spares:
            wait_until(lambda: has_spares(supervisor.pid, pids))
        wait_until((one.folder / "run" / SAVED_STEPS_NAME).exists)
        time.sleep(one.wait_s)
        killed = kill(pids[one.rank])
        back = wait_for(one.folder, "stepping", before + 2)
        ready = events(one.folder, "processes_started")[-1]["standby"]
        return {"to_step_s": when(back) - killed, "ready_spares": len(ready)}


def has_spares(supervisor: int, trainers: Sequence[int]) -> bool:
    """Whether there is a spare for each trainer, and all have imported: none works for a second."""
    spares = set(children(supervisor)) - set(trainers)
    before = {one: cpu_ticks(one) for one in spares}
    time.sleep(1)
    idle = [one for one in spares if cpu_ticks(one) == before[one]]
    return len(idle) == len(trainers)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def kill_one_of_all(one: Try, run: Path) -> dict[str, Any]:
    """Kill a process of a run whose launcher starts all of them again; wait for their steps."""
    pids = wait_for_steps(run, one.processes)
    time.sleep(one.wait_s)
    killed = kill(pids[one.rank])
    others = range(one.processes)
    times = [first(run, rank, lambda line: line["pid"] not in pids) for rank in others]
    return {"to_step_s": max(times) - killed, **state_size(run)}


def kill_orbax(one: Try) -> dict[str, Any]:
    """Kill a process of the run written by hand, whose parent restarts all of them."""
    run = one.make_run()
    environment = {**quick_environment(), **compile_cache(one.folder / "compiled")}
    command = [sys.executable, HERE / "_orbax_run.py", run, one.processes]
    with started(command, environment, run / "output.txt"):
        return kill_one_of_all(one, run)


def kill_torchft(one: Try, *, python: Path, lighthouse: Sequence[str]) -> dict[str, Any]:
    """Kill a replica of a torchft run; `torchrun` starts it again at once."""
    run, port, count = one.make_run(), free_port(), one.processes
    shared = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "NUM_REPLICA_GROUPS": str(count)}
    common = {**torch_environment(), **shared}
    with contextlib.ExitStack() as stack:
        server = [python.parent / "torchft_lighthouse", "--bind", f"[::]:{port}", *lighthouse]
        stack.enter_context(started(server, common, run / "lighthouse.txt"))
        for rank in range(count):
            replica = [python, "-m", "torch.distributed.run", f"--master_port={free_port()}"]
            replica += ["--nnodes=1", "--nproc_per_node=1", "--max_restarts=10"]
            replica += [HERE / "_torchft_worker.py", run]
            environment = {**common, "REPLICA_GROUP_ID": str(rank)}
            stack.enter_context(started(replica, environment, run / f"output_{rank}.txt"))
        pids = wait_for_steps(run, count, participants=count)
        time.sleep(one.wait_s)
        killed = kill(pids[one.rank])
        others = [rank for rank in range(count) if rank != one.rank]
        began = wait_until(lambda: first_without(run, others, killed, count))
        fewer = [first(run, rank, lambda line: line["time"] >= began) for rank in others]
        found = {"to_step_s": max(fewer) - killed, **state_size(run)}
        with contextlib.suppress(TimeoutError):
            back = first(run, one.rank, lambda line: is_back(line, killed, count))
            found["back_s"] = back - killed
        return found


def kill_nvrx_launcher(one: Try, *, python: Path) -> dict[str, Any]:
    """Kill a rank under `ft_launcher`, which starts all of them again."""
    run, launcher = one.make_run(), [python.parent / "ft_launcher", "--nnodes=1"]
    # A rendezvous among hosts, as its examples have; `--monitor-interval` is 0.1 s, as by default.
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"]
    launcher += ["--max-restarts=10", f"--nproc-per-node={one.processes}"]
    launcher += ["--ignore-missing-fault-tol-cfg", HERE / "_nvrx_worker.py", run]
    with started(launcher, torch_environment(), run / "output.txt"):
        return kill_one_of_all(one, run)


def kill_nvrx_in_process(
    one: Try, *, python: Path, interval_s: float, gloo_s: float
) -> dict[str, Any]:
    """Kill a rank whose place one in reserve takes; the others keep their processes."""
    run, count, port = one.make_run(), one.processes, free_port()
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(count + 1)}
    with contextlib.ExitStack() as stack:
        for rank in range(count + 1):
            command = [python, HERE / "_nvrx_worker.py", run, count, interval_s, gloo_s]
            environment = {**torch_environment(), **shared, "RANK": str(rank), "LOCAL_RANK": "0"}
            stack.enter_context(started(command, environment, run / f"output_{rank}.txt"))
        pids = wait_for_steps(run, count)
        time.sleep(one.wait_s)
        killed = kill(pids[one.rank])
        others = [rank for rank in range(count + 1) if rank != one.rank]
        times = [first(run, rank, lambda line: line.get("iteration", 0) > 0) for rank in others]
        return {"to_step_s": max(times) - killed, **state_size(run)}


def torch_environment() -> dict[str, str]:
    """Return the variables of processes of torch, which see no GPU and take one thread each."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def first_without(run: Path, others: Sequence[int], killed: float, count: int) -> float | None:
    """Return when survivors of torchft's run first committed a step without the killed replica."""
    lines = (line for rank in others for line in read_steps(run, rank) if "step" in line)
    fewer = (one["time"] for one in lines if one["time"] > killed and one["participants"] < count)
    return min(fewer, default=None)


def is_back(line: Mapping[str, Any], killed: float, count: int) -> bool:
    """Whether a replica of torchft committed a step together with all others again."""
    return line["time"] > killed and line["participants"] == count


def wait_for_steps(run: Path, count: int, **values: int) -> list[int]:
    """Return the ids of the processes, once each of them has made some steps."""

    def pids() -> list[int] | None:
        newest = [(read_steps(run, rank) or [{}])[-1] for rank in range(count)]
        wanted = all(
            line.get("step", 0) >= FIRST_STEPS and values.items() <= line.items() for line in newest
        )
        return [line["pid"] for line in newest] if wanted else None

    return wait_until(pids)


def first(run: Path, rank: int, is_wanted: Callable[[dict[str, Any]], bool]) -> float:
    """Return the time of a process's first step that is wanted, as soon as there is one."""

    def found() -> float | None:
        steps = (line for line in read_steps(run, rank) if "step" in line)
        return next((line["time"] for line in steps if is_wanted(line)), None)

    return wait_until(found)


def state_size(run: Path) -> dict[str, Any]:
    """Return the parameters, and the bytes with the optimizer's moments, that a worker noted."""
    line = read_steps(run, 0)[0]
    return {name: line[name] for name in ("parameters", "bytes")}


def wait_until(found: Callable[[], T | None]) -> T:
    """Return what a function finds, once it finds something.

    Raises:
        TimeoutError: It found nothing for too long.
    """
    end = time.monotonic() + LIMIT_S
    while not (value := found()):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came in {LIMIT_S} s")
        time.sleep(0.02)
    return value


def kill(pid: int) -> float:
    """Kill a process, and return when."""
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    return killed


@contextlib.contextmanager
def started(
    command: Sequence[object], environment: Mapping[str, str], output: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command within the context, what it prints in a file."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command)], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    with ended(process):
        yield process


@contextlib.contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Kill a process and all below it at the end; its children may lead sessions of their own."""
    try:
        yield process
    finally:
        for pid in tree(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def tree(pid: int) -> list[int]:
    """Return a process and those below it, stopped, so that none of them starts another one."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGSTOP)
        return [pid, *(below for child in children(pid) for below in tree(child))]
    return []


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])
