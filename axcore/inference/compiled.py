"""`CompiledPrograms`: programs by their keys, each compiled once."""

import threading
from collections.abc import Callable, Hashable
from typing import Any

from axcore.ops import current_policy, use_policy
from axcore.plugins import wanted_compiler_options


class CompiledPrograms:
    """Compiles programs, in any thread, for the policy that it was made under.

    Args:
        lowered: Returns the program of a key, not yet compiled.

    Attributes:
        num_compiled: Programs compiled so far.
        num_waited_for: Those of them that a call waited for.
    """

    def __init__(self, lowered: Callable[[Any], Any]) -> None:
        self.num_compiled = 0
        self.num_waited_for = 0
        self._lowered = lowered
        self._found: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._policy = current_policy()
        self._options = dict(wanted_compiler_options(self._policy.hardware, serves=True)) or None

    def prepare(self, key: Hashable) -> Any:
        """Returns the program of a key; compiles it if nobody did."""
        found = self._found.get(key)
        if found is not None:
            return found
        with use_policy(self._policy):
            found = self._lowered(key).compile(compiler_options=self._options)
        with self._lock:
            self.num_compiled += key not in self._found
            return self._found.setdefault(key, found)

    def of_call(self, key: Hashable) -> Any:
        """Returns what `prepare` does, for a call that needs it now."""
        found = self._found.get(key)
        if found is None:
            self.num_waited_for += 1
            found = self.prepare(key)
        return found
