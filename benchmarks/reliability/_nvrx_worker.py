"""One rank of a run under nvidia-resiliency-ext, as in its `basic_ft_example` and
`advanced_example`.

    ft_launcher ... _nvrx_worker.py FOLDER             every rank starts again when one is lost
    python _nvrx_worker.py FOLDER ACTIVE INTERVAL_S GLOO_S
                                                       the survivors start again in their processes

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the environment. In the second form ranks
beyond ACTIVE wait in reserve, and INTERVAL_S is how often monitors look and how long they wait for
other faults; the library's own is one second. GLOO_S is how long a survivor that has no connection
to the lost rank stays in a collective: what aborts those of NCCL ends none of Gloo's. The examples
have 10 s. Model and optimizer are made once a process, as the example does. Rank 0 saves every ten
steps, as often as the other systems.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional

import torch
from _step_log import StepLog
from _torch_model import Model, random_tokens, state_size
from nvidia_resiliency_ext import fault_tolerance, inprocess
from torch import distributed, optim
from torch.nn.parallel import DistributedDataParallel

EVERY_STEPS = 10


class Training:
    """Model, optimizer and log of a process."""

    def __init__(self, folder: Path) -> None:
        self.model = Model()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=3e-3)
        self.path = folder / "checkpoint.pt"
        # By the first number of a rank: survivors get others.
        self.log = StepLog(folder, int(os.environ["RANK"]))
        self.log.write(**state_size(self.model))

    def restore(self) -> int:
        """Return the step of the newest checkpoint, restored; 0 where there is none."""
        if not self.path.exists():
            return 0
        saved = torch.load(self.path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])

    def run(
        self,
        iteration: int,
        after_step: Callable[[], None] = lambda: None,
        atomic: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Train for ever in a process group that was just made."""
        replicated = DistributedDataParallel(self.model)
        step = self.restore()
        while True:
            step += 1
            self.optimizer.zero_grad()
            replicated(random_tokens()).backward()
            self.optimizer.step()
            self.log.write(
                step=step, participants=distributed.get_world_size(), iteration=iteration
            )
            after_step()
            if step % EVERY_STEPS == 0 and distributed.get_rank() == 0:
                with atomic():
                    self.save(step)

    def save(self, step: int) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        new = self.path.with_suffix(".new")
        torch.save({"step": step, **state}, new)
        new.rename(self.path)


def under_launcher(folder: Path) -> None:
    """Train as a rank of `ft_launcher`, which watches its heartbeats."""
    distributed.init_process_group("gloo")
    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    Training(folder).run(restarts, client.send_heartbeat)


def in_process(folder: Path, active: int, interval_s: float, gloo_s: float) -> None:
    """Train as a rank whose wrapper restarts `train` in every process that is left."""
    training = Training(folder)
    port = int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        port,
        world_size=int(os.environ["WORLD_SIZE"]),
        is_master=os.environ["RANK"] == "0",
        multi_tenant=True,
        wait_for_workers=True,
        use_libuv=True,
    )
    interval = timedelta(seconds=interval_s)

    @inprocess.Wrapper(
        store_kwargs={"port": port + 1},
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(active),
            inprocess.rank_assignment.ShiftRanks(),
        ),
        monitor_thread_interval=interval,
        monitor_process_interval=interval,
        heartbeat_interval=interval,
        progress_watchdog_interval=interval,
        last_call_wait=interval,
    )
    def train(call_wrapper: Optional[inprocess.CallWrapper] = None) -> None:  # noqa: UP045 - it looks for this type
        assert call_wrapper is not None
        number = call_wrapper.iteration
        distributed.init_process_group(
            "gloo",
            store=distributed.PrefixStore(str(number), store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=gloo_s),
        )
        training.run(number, atomic=call_wrapper.atomic)

    train()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        under_launcher(Path(sys.argv[1]))
    else:
        in_process(Path(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:]))
