"""`RequestWork`: what requests make the server compute before the engine samples tokens for them.

All of it passes here: reading long bodies, tokenizing, templates, grammars. It happens off the
event loop, a few pieces at a time, of each client fewer, in the order in which requests came. A
request whose client goes leaves the queue; a worker process that computes for it is killed.
"""

import asyncio
import contextlib
import marshal
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, TypeVar

from axcore.data import Message, Tokenizer
from axcore.errors import DataError, RequestError
from axcore.inference.grammar import Grammar, grammar_source, known_token_bytes, wrong_grammar
from axcore.serving.api_error import ApiError
from axcore.serving.config import Limits
from axcore.serving.request_parser import parse_body
from axcore.serving.worker_process import MEMORY_BYTES

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Who sent the request that is answered; `AccessMiddleware` sets it."""

# Where the kernel's clock for processor time does
# not end a worker, as when it sleeps, this one does.
_START_S, _PATIENCE = 30, 20
"""A worker is killed after so many seconds, and so many for each second of processor time that it
has: the kernel counts processor time, and a busy machine gives little of it."""

# A reply is held in memory whole; a template can write much from little.
_MOST_REPLY = 64 << 20
_KNOWN_GRAMMARS = 1024
"""Number of grammars that are known to compile in time, those used last."""

SHORT = 2000
"""Letters or bytes below which work takes less time than another thread needs to begin."""

LONG_BODY = 1 << 16
"""Bytes above which a body is parsed in another process: here, no thread would run meanwhile."""

_PARSE_S = 10
"""Seconds of processor time that a body may take, several times what the worst one does."""

Result = TypeVar("Result")


class FairThreadPool:
    """Lets functions run in threads, so many at a time, and of each client fewer.

    Args:
        num_threads: How many run at once.
    """

    def __init__(self, num_threads: int) -> None:
        # One thread is left for others, whatever a client sends.
        self._most, self._most_each = num_threads, max(1, num_threads - 1)
        # One fewer for each client than there are: with one client all but
        # one are used, and nobody waits for a long job of somebody else.
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="axcore-request")
        self._running: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @property
    def num_running(self) -> int:
        """Number of functions that run, those of clients that left included."""
        return self._running.total()

    @property
    def num_waiting(self) -> int:
        """Number of functions that wait for their turn."""
        return len(self._waiting)

    async def run(
        self,
        function: Callable[[], Result],
        *,
        when_cancelled: Callable[[], None] = lambda: None,
        when_late: Callable[[Result], None] = lambda _: None,
    ) -> Result:
        """Return what a function returns, once its turn has come.

        Args:
            function: It runs in a thread.
            when_cancelled: Is called where nobody waits for the function any more while it runs.
            when_late: Is called with what the function returned after that.
        """
        # Taken here, in the request's context; a callback has another one.
        client, loop = CLIENT.get(), asyncio.get_running_loop()
        # Turns are given out on the event loop, and only then is a thread asked: the
        # executor's own queue is first come, first served, and one client could fill it.
        await self._turn(client)
        future = self._threads.submit(function)
        # By the future and not after `await`: a thread runs on when the
        # request is cancelled, and its place is free only when it ends.
        future.add_done_callback(lambda _: _call_in(loop, partial(self._leave, client)))
        try:
            # Cancelling it cancels a function that has not begun.
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            when_cancelled()
            # What a function has made after nobody waited, such
            # as queued requests, must be undone by somebody.
            future.add_done_callback(partial(_pass_result, when_late))
            raise

    def close(self) -> None:
        """Take nothing more; what runs, ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, client: str) -> None:
        if self._may_run(client):
            self._running[client] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((client, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # The set result and the cancellation can come in one
            # turn of the loop; the place would be lost for good.
            if turn.done() and not turn.cancelled():  # its turn came in the same moment
                self._leave(client)
            else:
                self._waiting.remove((client, turn))
            raise

    def _may_run(self, client: str) -> bool:
        return self.num_running < self._most and self._running[client] < self._most_each

    def _leave(self, client: str) -> None:
        self._running[client] -= 1
        # `Counter` keeps zeros; adding an empty one drops them,
        # or a server would remember every address it ever saw.
        self._running += Counter()  # drops clients that have nothing running
        # In order of arrival, passing over clients that have their share already.
        for waiting in self._waiting:
            if self._may_run(waiting[0]) and not waiting[1].done():
                self._waiting.remove(waiting)
                self._running[waiting[0]] += 1
                waiting[1].set_result(None)
                return


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
        loop.call_soon_threadsafe(function)


def _pass_result(when_late: Callable[[Any], None], future: "Future[Any]") -> None:
    if not future.cancelled() and future.exception() is None:
        when_late(future.result())


class WorkerEnded(Exception):  # noqa: N818 - what happened, not what is wrong
    """A worker process ended over a job; the text says why, as the end of a sentence."""


class Worker:
    """A process that runs one job after another; it starts with the first one, and again.

    Args:
        setup: What it is for, pickled; see `worker_process`.
    """

    def __init__(self, setup: bytes) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None

    # A worker that is dropped with its pool, as in tests, must not live on.
    def __del__(self) -> None:
        self.kill()
        self.close()

    def call(self, values: Any, *, seconds: float) -> dict[str, Any]:
        """Return the reply to a job.

        Raises:
            WorkerEnded: It takes too much time or memory, or broke the library.
        """
        if self._process is None:
            self._start()
        try:
            self._connection.send_bytes(pickle.dumps((seconds, values)))
            # The timer in the worker counts processor time, and so is fair on a busy machine.
            # This one, in wall-clock time, is for a worker that does not run at all.
            if not self._connection.poll(_START_S + _PATIENCE * seconds):
                self.kill()
            # Reads values alone, where pickle would run what a reply says, and faster than JSON.
            # A worker runs what clients send, so it counts
            # as hostile: its replies are never unpickled.
            reply: dict[str, Any] = marshal.loads(self._connection.recv_bytes(_MOST_REPLY))
        except (EOFError, OSError) as error:
            raise WorkerEnded(_why(self.close(), seconds)) from error
        if "memory" in reply:
            raise WorkerEnded(_TOO_MUCH_MEMORY)
        return reply

    # Called from another thread than `call`, and on purpose without
    # a lock: the pipe breaks, and `call` ends with EOFError.
    def kill(self) -> None:
        """End the process, and with it a `call` in another thread."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> int:
        """End the process; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        self._connection.close()
        # It has hung up, so it ends by itself in a moment, with the status that says why.
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        script = str(Path(__file__).with_name("worker_process.py"))
        with theirs:
            # A new interpreter, not a fork: this process has threads and
            # devices, and a fork copies locks that nobody will release.
            self._process = subprocess.Popen(
                # -P: the script's folder has modules of this package, which are not top-level ones.
                [sys.executable, "-P", script, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server, which drains first
            )
        # The setup by the pipe, for it may be larger than a command line.
        self._connection.send_bytes(self._setup)


_TOO_MUCH_MEMORY = f"needs more than {MEMORY_BYTES >> 30} GiB of memory"


def _why(status: int, seconds: float) -> str:
    # Which limit ended it is in the signal; see `worker_process`.
    if status == -signal.SIGPROF:
        return f"takes more than {seconds:g} s of processor time"
    # Deep recursion in C overflows the stack.
    if status == -signal.SIGSEGV:
        return "is nested too deep"
    if status == -signal.SIGABRT:  # how Rust ends where there is no memory
        return _TOO_MUCH_MEMORY
    if status == -signal.SIGKILL:  # by `kill`, or by the system where memory is short
        return "takes too much time or memory"
    raise RuntimeError(f"a worker process ended with exit status {status}; its error is above")


class Workers:
    """Worker processes of one kind, as many as there are turns.

    Args:
        number: How many.
        setup: Returns what they are for; it is called with the first job.
    """

    def __init__(self, number: int, setup: Callable[[], tuple[str, dict[str, Any]]]) -> None:
        self.pool = FairThreadPool(number)
        self._setup, self._pickled = setup, b""
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []

    async def call(self, values: Any, *, seconds: float) -> dict[str, Any]:
        """Return the reply to a job.

        Raises:
            WorkerEnded: As `Worker.call`.
        """
        mine: list[Worker] = []

        def work() -> dict[str, Any]:
            # At the first job: a vocabulary's bytes take a while
            # to list, and most servers never see a grammar.
            self._pickled = self._pickled or pickle.dumps(self._setup())
            worker = self._idle.pop() if self._idle else Worker(self._pickled)
            self._busy.append(worker)
            mine.append(worker)
            try:
                return worker.call(values, seconds=seconds)
            finally:
                mine.clear()
                self._busy.remove(worker)
                # One that ended is kept too: it starts again at its next job.
                self._idle.append(worker)

        def kill() -> None:
            # `mine` is empty once the job is done: the worker may be another request's by then.
            for worker in tuple(mine):
                worker.kill()

        return await self.pool.run(work, when_cancelled=kill)

    def close(self) -> None:
        """End the processes."""
        self.pool.close()
        for worker in tuple(self._busy):
            worker.kill()
        while self._idle:
            # Idle ones hang up by the closed pipe; busy ones were
            # killed above and are put here by their threads.
            self._idle.pop().close()


class RequestWork:
    """Computes for requests, bounded.

    Args:
        tokenizer: The model's; None where nothing renders chats or compiles grammars.
        limits: What one request may cost.
        max_bytes: Of the text of a prompt.
    """

    def __init__(self, tokenizer: Tokenizer | None, limits: Limits, *, max_bytes: int) -> None:
        # Half of the cores: the engine's thread and the event loop need theirs.
        number = limits.num_workers or min(8, max(2, (os.cpu_count() or 1) // 2))
        self._known_tokenizer, self._limits, self._max_bytes = tokenizer, limits, max_bytes
        self.threads = FairThreadPool(number)
        # Kinds have workers of their own: each keeps
        # what it has set up, a template or a vocabulary.
        self.bodies = Workers(number, lambda: ("body", {}))
        self.templates = Workers(number, self._template_setup)
        self.grammars = Workers(number, self._grammar_setup)
        self._known: OrderedDict[Grammar, None] = OrderedDict()

    async def compute(
        self,
        function: Callable[[], Result],
        *,
        size: int,
        when_late: Callable[[Result], None] = lambda _: None,
    ) -> Result:
        """Return what a function returns, which runs in a thread unless it is short.

        Args:
            function: Takes time in proportion to its size.
            size: Letters or bytes that it reads.
            when_late: As `FairThreadPool.run`.
        """
        # In the event loop: handing it to a thread would take longer than doing it.
        if size < SHORT:
            return function()
        return await self.threads.run(function, when_late=when_late)

    async def parse(self, body: bytes) -> Any:
        """Return what a body says.

        Raises:
            ApiError: As `parse_body`.
        """
        if len(body) <= LONG_BODY:
            return await self.compute(partial(parse_body, body), size=len(body))
        try:
            reply = await self.bodies.call(body, seconds=_PARSE_S)
        except WorkerEnded as ended:
            message = f"The body {ended}."
            raise ApiError(400, message, code="body_too_complex") from ended
        if "message" in reply:
            raise ApiError(400, reply["message"], param=reply["param"], code=reply["code"])
        return reply["content"]

    async def render(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        """Return the text that the chat template writes of a conversation.

        Raises:
            DataError: The template refuses it, or takes too much time, memory or text for it.
        """
        seconds = self._limits.template_timeout_s
        job = {"messages": list(messages), "values": dict(values)}
        try:
            reply = await self.templates.call(job, seconds=seconds)
        except WorkerEnded as ended:
            raise DataError(
                f"The chat template {ended} for this conversation",
                hint="Shorten the conversation; --set limits.template_timeout_s=10 changes a "
                "server's limit of time.",
            ) from ended
        if "size" in reply:
            raise DataError(
                f"The chat template writes {reply['size']:,} bytes of this conversation; at most "
                f"{self._max_bytes:,} are read",
                hint="Shorten the conversation.",
            )
        if "what" in reply:
            raise DataError(reply["what"], hint=reply["hint"])
        return str(reply["text"])

    async def check_grammar(self, grammar: Grammar) -> None:
        """Check in a process of its own that a grammar compiles in time.

        The library compiles in threads as well, but cannot be interrupted, and a grammar that is
        nested too deep ends its process.

        Raises:
            RequestError: It is wrong, or takes too much time, memory or text.
        """
        # Grammars repeat: a program sends the same schema with each request.
        if grammar in self._known:
            self._known.move_to_end(grammar)
            return
        size, most = len(grammar.text.encode()), self._limits.max_grammar_bytes
        if size > most:
            raise RequestError(
                f"the grammar has {size:,} bytes; at most {most:,} are accepted",
                where="grammar",
                hint=f"shorten it; --set limits.max_grammar_bytes={size} changes a server's limit",
            )
        # To source form here, as the worker imports neither jax nor the tokenizer.
        source = await self.threads.run(partial(grammar_source, grammar, self._tokenizer))
        seconds = self._limits.grammar_timeout_s
        try:
            reply = await self.grammars.call(source, seconds=seconds)
        except WorkerEnded as ended:
            raise RequestError(
                f"the grammar {ended}",
                where="grammar",
                hint="make it shorter; --set limits.grammar_timeout_s=10 changes a server's limit "
                "of time",
            ) from ended
        if reply["said"]:
            raise wrong_grammar(grammar, reply["said"])
        self._known[grammar] = None
        # The one that was used longest ago.
        if len(self._known) > _KNOWN_GRAMMARS:
            self._known.popitem(last=False)

    def close(self) -> None:
        """End the worker processes, and wait for what runs in threads."""
        self.bodies.close()
        self.templates.close()
        self.grammars.close()
        self.threads.close()

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self._known_tokenizer is not None  # no endpoint renders or compiles
        return self._known_tokenizer

    def _template_setup(self) -> tuple[str, dict[str, Any]]:
        template = self._tokenizer.known_chat_template
        return "template", {"template": template, "max_bytes": self._max_bytes}

    def _grammar_setup(self) -> tuple[str, dict[str, Any]]:
        tokenizer = self._tokenizer
        return "grammar", {
            "tokens": known_token_bytes(tokenizer),
            "eos_id": tokenizer.eos_id,
            "bos_id": tokenizer.bos_id,
            "end_ids": tuple(tokenizer.end_ids),
        }
