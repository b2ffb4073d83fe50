"""What a worker process runs: long bodies, chat templates and grammars, which may never end.

`RequestWork` starts it as a script and ends it. Each job has a limit of processor time that the
kernel enforces, also inside of a library that never looks at a clock; memory is limited as well.
Where the library overflows its stack, this process dies, and not the server.
"""

import contextlib
import importlib
import marshal
import os
import pickle
import resource
import signal
import sys
import threading
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

# A vocabulary takes some hundred megabytes; what needs this much is an
# attack or a mistake, and must not have the server killed by the kernel.
MEMORY_BYTES = 2 << 30
"""Memory of a worker; what needs more fails."""

_STACK_BYTES = 4 << 20
"""Stack of a grammar's compilation. Threads of the server have 8 MiB: what passes here passes there
with room to spare."""

_NICENESS = 10
"""Bodies and grammars let the steps of the engine go first."""


class Jobs(Protocol):
    """What a worker is for."""

    def run(self, values: Any) -> dict[str, Any]:
        """Return the reply to a job."""
        ...


class BodyJobs:
    """Parses bodies: in the server, nothing else would run meanwhile."""

    def __init__(self) -> None:
        os.nice(_NICENESS)

    def run(self, values: Any) -> dict[str, Any]:
        """Return what a body says, or the error of one that is refused."""
        from axcore.serving.api_error import ApiError
        from axcore.serving.request_parser import parse_body

        try:
            return {"content": parse_body(values)}
        except ApiError as error:
            return {"message": error.message, "param": error.param, "code": error.code}


class TemplateJobs:
    """Renders conversations.

    Args:
        template: The chat template.
        max_bytes: Of the text that it may write.
    """

    def __init__(self, template: Any, *, max_bytes: int) -> None:
        self._template, self._max_bytes = template, max_bytes

    def run(self, values: Any) -> dict[str, Any]:
        """Return the text of a conversation."""
        from axcore.errors import AxcoreError

        try:
            text = self._template.render(values["messages"], **values["values"])
        except AxcoreError as error:
            if isinstance(error.__cause__, MemoryError):
                raise MemoryError from error
            return {"what": error.what, "hint": error.hint}
        size = len(text.encode("utf-8", "surrogatepass"))
        return {"size": size} if size > self._max_bytes else {"text": text}


class GrammarJobs:
    """Compiles grammars, to see whether that ends.

    Args:
        tokens: The bytes of each token.
        eos_id: What ends texts.
        bos_id: What begins them, if anything does.
        end_ids: All tokens that end texts.
    """

    def __init__(
        self, tokens: list[bytes], *, eos_id: int, bos_id: int | None, end_ids: tuple[int, ...]
    ) -> None:
        # Imported here, before the memory limit: by then
        # everything that a job needs has been loaded.
        library: Any = importlib.import_module("llguidance")
        from axcore.inference.token_bytes import TokenBytes

        os.nice(_NICENESS)
        wrapped = TokenBytes(tokens, eos_id=eos_id, bos_id=bos_id)
        self._library = library
        self._tokenizer = library.LLTokenizer(wrapped, eos_token=list(end_ids))
        # Deep nesting must fail here, in a smaller stack than the server's.
        threading.stack_size(_STACK_BYTES)

    # On a thread, as the size of the main thread's stack was set by the shell.
    def run(self, values: Any) -> dict[str, Any]:
        """Return what the library says about a grammar; nothing where it takes it."""
        said: list[str] = []

        def compile_it() -> None:
            matcher = self._library.LLMatcher(self._tokenizer, values, log_level=0)
            if not matcher.is_error():
                matcher.deep_copy().compute_bitmask()  # what the server does before the first token
            said.append(matcher.get_error() if matcher.is_error() else "")

        thread = threading.Thread(target=compile_it)
        thread.start()
        thread.join()
        return {"said": said[0]}


def _serve(connection: Connection) -> None:
    """Run jobs until the server hangs up."""
    # The setup comes from our own server and is the only
    # thing that may be unpickled here, in addition to its jobs.
    kind, setup = pickle.loads(connection.recv_bytes())
    jobs: Jobs = {"body": BodyJobs, "template": TemplateJobs, "grammar": GrammarJobs}[kind](**setup)
    # After the setup: address space counts, and libraries reserve a lot of it when they are loaded.
    if sys.platform == "linux":  # others refuse it, or do not enforce it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while True:
        seconds, values = pickle.loads(connection.recv_bytes())
        # The default action of SIGPROF ends the process, whatever it is computing.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        # Nothing but memory is caught. A bug ends the
        # process, and the server says what the status was.
        try:
            reply = jobs.run(values)
        except MemoryError:
            reply = {"memory": MEMORY_BYTES}
        # Off before replying, or the next job would begin with what this one left of the time.
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(marshal.dumps(reply))


def _without_init(root: Path, *packages: str) -> None:
    """Let modules of packages be imported without what the packages import: jax takes a second."""
    for name in packages:
        package = types.ModuleType(f"axcore.{name}")
        package.__path__ = [str(root / "axcore" / name)]
        sys.modules[package.__name__] = package


def main() -> None:
    """Run the jobs that come by the file descriptor which the command line names."""
    # No core dumps: they would hold the texts of clients, gigabytes of them.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    root = Path(__file__).parents[2]
    # At the end of the path, so that nothing in the checkout shadows an installed library.
    sys.path.append(str(root))
    _without_init(root, "data", "inference", "serving")
    with contextlib.suppress(EOFError, OSError), Connection(int(sys.argv[1])) as connection:
        _serve(connection)


if __name__ == "__main__":
    main()
