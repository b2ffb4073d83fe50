"""`Coordination`: jax's coordination service in the supervisor, so that no trainer's end ends it.

AXCORE_COORDINATION    "supervisor" says to trainers that the coordinator's address is served
"""

from collections.abc import Sequence
from typing import Any

import attrs

from axcore._jax_compat import serve_coordination
from axcore.launch.children import ProcessStart
from axcore.launch.process_info import COORDINATOR

COORDINATION_VARIABLE = "AXCORE_COORDINATION"
BY_SUPERVISOR = "supervisor"


class Coordination:
    """The service of one attempt after another; each has one of its own."""

    def __init__(self) -> None:
        self._service: Any = None

    def serve(self, starts: Sequence[ProcessStart]) -> list[ProcessStart]:
        """Serves the address that processes are started with; returns the starts that say so.

        Raises:
            Exception: This jax serves otherwise; the processes can serve themselves.
        """
        self.end()
        port = int(starts[0].environment[COORDINATOR].rpartition(":")[2])
        self._service = serve_coordination(port, len(starts))
        return [self.announce(start) for start in starts]

    @staticmethod
    def announce(start: ProcessStart) -> ProcessStart:
        """Returns a start that says who serves."""
        variables = {**start.environment, COORDINATION_VARIABLE: BY_SUPERVISOR}
        return attrs.evolve(start, environment=variables)

    def end(self) -> None:
        """Ends the service; a process that has not left it aborts."""
        service, self._service = self._service, None
        if service is not None:
            service.shutdown()
