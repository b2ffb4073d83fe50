"""An engine whose mesh spans several processes: process 0 plans, and all of them run its calls.

Every process builds the same engine, with the same programs, and loads its part of the weights.
Requests, schedules, grammars and sampled text are in process 0 alone. What it has the device do is
said to the others before it begins: a call is a method of `Programs` with values of the host.
"""

import time
from typing import Any

from jax.sharding import Mesh

from axcore.distributed import MessageTree
from axcore.errors import EngineError, ProcessError
from axcore.inference.programs import Programs

_CALLS = frozenset(
    {
        "copy_page",
        "decode",
        "encode",
        "forget_logits",
        "keep_logits",
        "multi_step_decode",
        "prefill",
        "sample",
        "score_prompt",
        "set_sampling",
        "start_history",
        "verify_draft_tokens",
    }
)
"""Methods of `Programs` that use the device, or change what it holds."""

_PAUSE, _END = "pause", "end"

_NOTICE_S = 2.0
"""Seconds after which the end of a connection has been noticed."""


class EngineProcesses:
    """The processes of an engine.

    Attributes:
        tree: What process 0 says goes over it.
        is_first: Whether this is process 0.
    """

    def __init__(self) -> None:
        self.tree = MessageTree("engine")
        self.is_first = self.tree.index == 0

    @classmethod
    def of(cls, mesh: Mesh | None) -> "EngineProcesses | None":
        """Return those of a mesh; None where all of its devices are of this process."""
        return None if mesh is None or not mesh.is_multi_process else cls()

    def check_first(self) -> None:
        """Raise EngineError in all processes but the one that answers requests."""
        if not self.is_first:
            raise EngineError(
                f"process {self.tree.index} answers no requests: it runs what process 0 plans",
                hint="call follow in it, or give work to together, in all processes",
            )

    def check_present(self) -> None:
        """Raise ProcessError where a process was lost, as the error of a call may not say."""
        # Connections end at the same time; which of them is noticed first is left to chance.
        ends = time.monotonic() + _NOTICE_S
        while self.tree.error is None and time.monotonic() < ends:
            time.sleep(0.05)
        if self.tree.error is not None:
            raise self.tree.error

    def pause(self) -> None:
        """Have `run` return True in the others."""
        self._say(_PAUSE)

    def close(self) -> None:
        """Have `run` return False in the others, and leave them."""
        if self.is_first and self.tree.error is None:
            self._say(_END)
        self.tree.close()

    def run(self, programs: Programs) -> bool:
        """Run what process 0 says; return whether it will say more later.

        Raises:
            EngineError: A call failed here.
            ProcessError: A process was lost.
        """
        try:
            for name, args, options in self.tree.messages():
                if name in (_PAUSE, _END):
                    return bool(name == _PAUSE)
                if name not in _CALLS:  # of another version of axcore
                    raise EngineError(f"process 0 asks for {name!r}, which is not a call")
                getattr(programs, name)(*args, **options)
        except ProcessError:
            raise
        except Exception as error:
            self.check_present()  # where a collective failed because another process was lost
            self.tree.fail(str(error))
            raise
        return False

    def saying(self, programs: Programs) -> Programs:
        """Return programs that say each call to the others before they run it."""
        said: Any = _SaidPrograms(programs, self._say)
        return said  # type: ignore[no-any-return]

    def _say(self, name: str, *args: Any, **options: Any) -> None:
        try:
            self.tree.send([name, args, options])
        except ProcessError as error:
            raise EngineError(error.what, hint=error.hint) from error


class _SaidPrograms:
    def __init__(self, programs: Programs, say: Any) -> None:
        self._programs, self._say = programs, say

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._programs, name)
        if name not in _CALLS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._say(name, *args, **options)
            return found(*args, **options)

        return call
