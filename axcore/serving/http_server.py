"""`HttpServer`: listens, answers, and drains before it ends."""

import errno
import logging
import socket
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from axcore.errors import ConfigError
from axcore.serving.served import Served
from axcore.serving.served_model import draining

LOGGER = logging.getLogger("axcore.serving")
# Answers are finished by then; this is for connections that are merely kept open.
_CLOSING_S = 2


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait until the server answers them.

    Args:
        host: A name or an address of this machine.
        port: 0 takes any that is free.

    Raises:
        ConfigError: The port is taken or not allowed, or the host is not this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The backlog holds clients while the model loads: they wait
        # for a slow start instead of being refused. No SO_REUSEPORT:
        # two servers on one port would each get half of the requests.
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise _refusal(host, port, error) from error
    return listener


def _refusal(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        what, hint = f"port {port} of {host} is taken", "--port 0 takes any that is free"
    elif error.errno == errno.EACCES:
        what, hint = f"this user may not listen on port {port}", "take one from 1024 on"
    elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        what, hint = f"{host!r} is not an address of this machine", "--host 127.0.0.1 always is"
    else:
        what, hint = f"cannot listen on port {port} of {host}: {error}", None
    return ConfigError(what, where="--host, --port", hint=hint)


class HttpServer(uvicorn.Server):
    """A server that takes no new requests once it is asked to end, and finishes those it has.

    SIGTERM and Ctrl-C drain it; a second one, or the end of `drain_s`, ends it at once. So does an
    engine that failed, which answers nothing any more.

    Args:
        app: What answers.
        served: The model, which refuses requests while the server drains.
        drain_s: Seconds that requests have to finish.
        proxies: Addresses whose word on the client's address is taken, with commas between.
    """

    def __init__(
        self, app: Starlette, served: Served, *, drain_s: float, proxies: str | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # uvicorn would set handlers of its own on the root
                # logger; the command has set up logging already.
                log_config=None,
                access_log=False,
                # A version in a header is for those who look for known holes.
                server_header=False,
                # Without named proxies the header is what any client likes it to be.
                proxy_headers=proxies is not None,
                forwarded_allow_ips=proxies,
                # uvicorn's 5 s are shorter than pools of clients keep a connection:
                # they would send a request into one that is being closed.
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_CLOSING_S,
                # The application has no start or end of its own; the
                # command opens and closes the engine around the server.
                lifespan="off",
            )
        )
        self._served, self._drain_s = served, drain_s
        self._ends_at: float | None = None
        self._num_at_signal = 0
        self._has_said = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and ends at the second."""
        # Called by uvicorn's signal handler in the main thread,
        # between two steps of the loop: only flags are set.
        if self._ends_at is None:
            self.drain()
        else:
            # Both: `should_exit` alone waits for open connections.
            self.should_exit = self.force_exit = True

    @property
    def left_s(self) -> float:
        """Seconds that are left of `drain_s`; 0 after a second signal, a few where none came."""
        if self.force_exit:
            return 0.0
        if self._ends_at is None:
            return _CLOSING_S
        # A deadline, not a number of seconds for each: a
        # request that comes to the end late gets what is left.
        return max(0.0, self._ends_at - time.monotonic())

    def drain(self) -> None:
        """Refuse new requests from here on, and ends when those there are were answered."""
        # First, so that the count below cannot grow any more.
        self._served.is_draining = True
        self._num_at_signal = self._served.num_active_requests
        self._ends_at = time.monotonic() + self._drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections, and what is computed for requests."""
        # Before uvicorn waits for connections: a client that
        # sends a long body slowly would hold the end up.
        self._served.bodies.refuse(draining(self._served.limits.retry_after_s))
        await super().shutdown(sockets)
        self._served.close()

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server ends; called ten times a second."""
        failed = self._served.error
        # Here and not in a callback: the engine fails in its
        # own thread, and uvicorn's flags belong to the loop's.
        if failed is not None and not self.should_exit:
            LOGGER.error("the server ends: %s", failed.what, exc_info=failed.__cause__)
            self.should_exit = True
        if self._ends_at is not None:
            num_left = self._served.num_active_requests
            # Said here: a signal handler must not log, as it may
            # have interrupted a logging call that holds the lock.
            if not self._has_said:
                LOGGER.info("draining: %s requests are being answered", self._num_at_signal)
                self._has_said = True
            if num_left == 0 or time.monotonic() > self._ends_at:
                if num_left:
                    LOGGER.warning("%s requests did not finish in time and are cut off", num_left)
                self.should_exit = True
        return await super().on_tick(counter)
