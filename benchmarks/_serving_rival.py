"""`Rival`: a process that answers tasks of `serving.py`, and whose failure is a note."""

import json
import os
import selectors
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Rival:
    """A process that measures itself when it is asked to.

    Args:
        python: Of its environment.
        command: Its script in this folder, and arguments.
        paths: Folders that its Python finds packages in, in addition to its own.
    """

    def __init__(self, python: Path | str, *command: str, paths: str = "") -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _OTHERS}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(
            [str(python), str(HERE / command[0]), *command[1:]],
            env={**kept, **({"PYTHONPATH": paths} if paths else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
        )
        self.failure: str | None = None
        self.start = self._answer(limit_s=120.0)

    def ask(self, task: str, *, limit_s: float = 180.0, **arguments: Any) -> dict[str, Any] | None:
        """Return what a task measured, or None where the process has failed, now or before."""
        if self.failure is not None:
            return None
        assert self._process.stdin is not None
        try:
            print(json.dumps({"task": task, **arguments}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return self._failed(f"{task}: the process has ended")
        answer = self._answer(limit_s)
        if answer is not None and "error" in answer:
            print(f"  {task}: {answer['error']}", flush=True)
            return None
        return answer

    def stop(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._said.close()

    def _answer(self, limit_s: float) -> dict[str, Any] | None:
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(out, selectors.EVENT_READ)
            began = time.monotonic()
            if not waiting.select(limit_s):
                self._process.kill()
                return self._failed(f"no answer in {time.monotonic() - began:.0f} s")
        line = out.readline()
        if not line:
            return self._failed(f"the process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _failed(self, how: str) -> None:
        self.failure = how
        said = self._said.fileno()  # read without seeking: the process writes at the same place
        words = os.pread(said, _SHOWN, max(0, os.fstat(said).st_size - _SHOWN))
        print(f"  failed: {how}; its last words:\n{words.decode(errors='replace')}", flush=True)


_SHOWN = 4000
"""Bytes of what a process that failed had said."""

_OTHERS = ("PYTHONPATH", "OMP_NUM_THREADS", "XLA_FLAGS")
"""Variables of this process that would set a rival up otherwise than its authors do."""
