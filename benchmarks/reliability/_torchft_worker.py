"""One replica of a torchft run, as in torchft's own `train_ddp.py`, for `torchrun`.

    torchrun ... _torchft_worker.py FOLDER

REPLICA_GROUP_ID and TORCHFT_LIGHTHOUSE come from the environment, as in that example. The model has
the sizes of `small_experiment`; the manager's time limits are those of the example for CPU.

Gradients are averaged by `Manager.allreduce`. The example's `DistributedDataParallel` does not
survive a lost replica on Gloo: `work.wait()` reports the error, and the hook then fails with
`assert fut._fut`, in every survivor (torchft 0.2.0 with torch 2.15.0).
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from _step_log import StepLog
from _torch_model import Model, random_tokens, state_size
from torch import optim
from torchft import Manager, Optimizer, ProcessGroupGloo


def main(folder: Path) -> None:
    """Train for ever."""
    rank = int(os.environ["REPLICA_GROUP_ID"])
    log = StepLog(folder, rank)

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{rank}",
        timeout=timedelta(seconds=30),
    )
    model = Model()
    optimizer = Optimizer(manager, optim.AdamW(model.parameters(), lr=3e-3))
    log.write(**state_size(model))
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        model(random_tokens()).backward()
        for work in [manager.allreduce(one.grad) for one in model.parameters()]:
            work.wait()
        optimizer.step()
        if manager.current_step() > before and manager.is_participating():
            log.write(step=manager.current_step(), participants=manager.num_participants())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
