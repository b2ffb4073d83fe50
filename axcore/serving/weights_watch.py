"""`WeightsWatch`: newer weights of a run that still trains, taken over between two steps."""

import logging
import threading
from types import TracebackType
from typing import Self

from axcore.errors import AxcoreError
from axcore.resilience.run_summary import summarise_run
from axcore.runs import Run
from axcore.serving.served import Served

LOGGER = logging.getLogger("axcore.serving")


class WeightsWatch:
    """Looks for a newer good checkpoint every few seconds, in a thread of its own.

    A checkpoint is good when a step after it was; the newest one of a training that has ended is
    good, too. Requests that are being answered continue with the new weights.

    Args:
        run: Where checkpoints appear.
        served: What takes them over.
        every_s: Seconds between looks.
    """

    def __init__(self, run: Run, served: Served, *, every_s: float) -> None:
        self._run, self._served, self._every_s = run, served, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="weights-watch", daemon=True)
        self._refused: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        # The thread may be in the middle of reading a checkpoint; the engine closes after it.
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def look(self) -> int | None:
        """Take over the newest good checkpoint; returns its step, or None where none is newer.

        Raises:
            CheckpointError: It is damaged, or was deleted meanwhile; the old weights still answer.
        """
        step = self._newest()
        # Not "newer": after a rollback the newest good step has a smaller number.
        if step is None or step == self._served.step:
            return None
        # Read into host memory: a second copy and the caches would not fit on the devices.
        restored = self._run.restored(step, on_host=True)  # devices have room for one array more
        own = self._run.trainer.step.own_part(restored.state)  # a task may keep more in the state
        before = self._served.step
        # Reading takes minutes, in which the server may have ended.
        if self._stopped.is_set():  # meanwhile: what would take them over is closed
            return None
        self._served.replace_weights(own, restored.step)
        LOGGER.info("weights of step %s answer now, after those of step %s", step, before)
        return restored.step

    def _newest(self) -> int | None:
        steps = self._run.checkpointer.steps()
        if not steps:
            return None
        good = max(self._run.checkpointer.known_good(), default=None)
        is_newer = good is None or steps[-1] > good
        # The newest step is good once a step after it
        # was; where the run has ended there will be none.
        if is_newer and summarise_run(self._run.directory).state != "running":
            good = steps[-1]
        # A smaller step is only taken where the present one is gone, which is what a rollback does.
        if good is None or (self._served.step in steps and good < (self._served.step or 0)):
            return None
        return good

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self.look()
                self._refused = None
            except Exception as error:  # whatever it is, the old weights answer, and it is said
                # The same error every few seconds would hide the rest of the log.
                if str(error) != self._refused:
                    is_known = isinstance(error, (AxcoreError, OSError))
                    LOGGER.warning(
                        "newer weights are not taken over: %s", error, exc_info=not is_known
                    )
                self._refused = str(error)
