"""How checks call a program of another process: by plain values, as JSON over two pipes.

A program never shares an interpreter with its checks. So it cannot read them, replace what they
use or end them; all that it can do is return values. `serve_program` is the program's side, and
`run_checks` that of the checks, which alone holds the pipe of the verdict. Numbers, text, bytes,
None, lists, tuples, sets, dicts and ranges are copied; anything else stays with the program, and
checks hold a `Remote` of it.
"""

import builtins
import json
import operator
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn

_LINE_BYTES = 32 << 20
_REASON = 2000
_EXACT = 1 << 53
_SEQUENCES: Mapping[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "bool": bool,
    "iter": iter,
    "next": next,
    "len": len,
    "str": str,
    "repr": repr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "contains": operator.contains,
}
"""What checks can do with a `Remote`, apart from calls and attributes. Comparisons are missing:
an object that says it equals everything would pass."""


class ProgramError(Exception):
    """An exception of the program that is of no class that Python itself has."""


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """Return what JSON has of a value; `handle` numbers what is not plain."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) < _EXACT else {"int": hex(number)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: bytes(value).hex()}
    if isinstance(value, range):
        return {"range": [encode(one, handle) for one in (value.start, value.stop, value.step)]}
    if isinstance(value, dict):
        return {"dict": [[encode(a, handle), encode(b, handle)] for a, b in value.items()]}
    if isinstance(value, list):
        return [encode(one, handle) for one in value]
    for name, cls in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, cls):
            return {name: [encode(one, handle) for one in value]}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return encode(value.item(), handle)
    return {"object": handle(value)}


def decode(value: Any, get: Callable[[int], Any]) -> Any:
    """Return the value of what `encode` returned; raises for anything else."""
    if isinstance(value, list):
        return [decode(one, get) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(one, get) for one in content)
    if kind == "dict":
        return {decode(a, get): decode(b, get) for a, b in content}
    if kind == "int":
        return int(content, 16)
    if kind == "range":
        return range(*(decode(one, get) for one in content))
    if kind == "complex":
        return complex(*content)
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray).fromhex(content)
    if kind == "object":
        return get(int(content))
    raise ValueError(f"no value is written as {kind!r:.40}")


def _send(pipe: IO[bytes], message: Any) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def _shown(error: BaseException) -> str:
    """Return the traceback without the line of this file that runs the code."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))[-_REASON:]


# The program's side.


class _Objects:
    """What checks hold a `Remote` of, by number."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._numbers: dict[int, int] = {}

    def handle(self, value: Any) -> int:
        # By identity, since equality is the program's own; the list keeps the id from reuse.
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.all)
            self.all.append(value)
        return self._numbers[id(value)]


def serve_program(code: str, requests: int, replies: int) -> None:
    """Run a program, then does what its checks ask until they end."""
    reader, writer = os.fdopen(requests, "rb"), os.fdopen(replies, "wb")
    _send(writer, "ready")
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(code, "program.py", "exec"), module.__dict__)
    except BaseException as error:
        print(_shown(error), file=sys.__stderr__)
        _send(writer, ["stopped", "".join(traceback.format_exception_only(error))[-_REASON:]])
        return
    _send(writer, ["ran"])
    objects = _Objects()
    for line in reader:
        _send(writer, _answer(json.loads(line), module.__dict__, objects))


def _answer(request: Sequence[Any], names: Mapping[str, Any], objects: _Objects) -> Any:
    verb, rest = request[0], [decode(one, objects.all.__getitem__) for one in request[1:]]
    try:
        if verb == "name":
            if rest[0] not in names:
                raise NameError(f"name {rest[0]!r} is not defined")
            return ["value", encode(names[rest[0]], objects.handle), []]
        if verb == "get":
            return ["value", encode(getattr(*rest), objects.handle), []]
        if verb == "operate":
            return ["value", encode(_OPERATIONS[rest[0]](*rest[1:]), objects.handle), []]
        if verb == "set":
            setattr(*rest)
            return ["value", None, []]
        function, arguments, options = rest
        value = function(*arguments, **options)
        # Arguments are sent back, since some functions change a list in place.
        return ["value", *(encode(one, objects.handle) for one in (value, arguments))]
    except BaseException as error:
        classes = [one.__name__ for one in type(error).__mro__ if one.__module__ == "builtins"]
        return ["raised", classes, f"{error}"[:_REASON], type(error).__name__]


# The checks' side.


class _Program:
    """Asks the program's process, and gives up for good where that does not answer as it should."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes], verdict: IO[bytes]) -> None:
        self._requests, self._replies, self._verdict = requests, replies, verdict
        self._remotes: dict[int, Remote] = {}

    def start(self) -> None:
        if self._replies.readline(16) != b'"ready"\n':
            os._exit(1)  # without a verdict: the caller then says that the sandbox failed
        _send(self._verdict, ["ready"])
        ended = self._line()
        if ended != ["ran"]:
            text = ended[-1] if isinstance(ended, list) and ended else ended
            self.end("failed", f"the program did not run to its end: {text}")

    def ask(self, verb: str, *rest: Any) -> Any:
        encoded = [encode(one, self._number) for one in rest]
        try:
            _send(self._requests, [verb, *encoded])
        except BrokenPipeError:
            self.end("failed", "the program ended before its checks did")
        reply = self._line()
        try:
            if reply[0] == "raised":
                error = self._error(*reply[1:])
            else:
                kind, *values = reply
                value, arguments = (decode(one, self._remote) for one in values)
                if verb == "call":
                    _update(rest[1], arguments)
                assert kind == "value"
                return value
        except Exception as malformed:
            self.end("failed", f"the program's answer cannot be read: {malformed!r}")
        raise error

    def end(self, status: str, reason: str) -> NoReturn:
        """Report the verdict and ends this process, whatever checks would catch."""
        _send(self._verdict, [status, reason[-_REASON:]])
        os._exit(0)

    def _line(self) -> Any:
        line = self._replies.readline(_LINE_BYTES)
        if not line.endswith(b"\n"):
            what = "answered with too much" if line else "ended before its checks did"
            self.end("failed", f"the program {what}")
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            self.end("failed", f"the program's answer cannot be read: {error!r}")

    def _remote(self, number: int) -> "Remote":
        if number not in self._remotes:
            self._remotes[number] = Remote(self, number)
        return self._remotes[number]

    @staticmethod
    def _number(value: Any) -> int:
        if isinstance(value, Remote):
            return _number_of(value)
        raise TypeError(f"checks can give a program plain values alone, not {value!r:.60}")

    @staticmethod
    def _error(classes: Sequence[str], text: str, name: str) -> Exception:
        for one in classes:
            cls = getattr(builtins, one, None)
            if isinstance(cls, type) and issubclass(cls, Exception) and cls is not Exception:
                try:
                    return cls(text)
                except TypeError:  # UnicodeDecodeError wants more
                    break
        return ProgramError(f"{name}: {text}")


def _update(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Change arguments in place, as the program did with its copies."""
    for one, other in zip(old, new, strict=True):
        if type(one) is not type(other) or one == other:
            continue
        if isinstance(one, (list, bytearray)):
            one[:] = other
        elif isinstance(one, (dict, set)):
            one.clear()
            one.update(other)


class Remote:
    """An object or function of the program, of which attributes, calls and iteration work here.

    Two are equal if they are the same object: what a program says about equality never counts.
    """

    def __init__(self, program: _Program, number: int) -> None:
        object.__setattr__(self, "_of", (program, number))

    def __getattr__(self, name: str) -> Any:
        return object.__getattribute__(self, "_of")[0].ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_of")[0].ask("set", self, name, value)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it in the program's process."""
        program = object.__getattribute__(self, "_of")[0]
        return program.ask("call", self, list(arguments), options)


def _number_of(remote: Remote) -> int:
    return int(object.__getattribute__(remote, "_of")[1])


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        program = object.__getattribute__(self, "_of")[0]
        return program.ask("operate", name, self, *arguments)

    return method


for _name in _OPERATIONS:
    setattr(Remote, f"__{_name}__", _forwarded(_name))


class _Names(dict[str, Any]):
    """Names of checks; one that neither they nor Python define is the program's."""

    def __init__(self, program: _Program) -> None:
        super().__init__(__name__="checks", __builtins__=builtins, program=_Namespace(program))
        self._program = program

    def __missing__(self, name: str) -> Any:
        # Python's own names come first, so that no program replaces `len` in its checks.
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        return self._program.ask("name", name)


class _Namespace:
    """`program` in checks: `program.f` is the program's `f`, whatever checks define."""

    def __init__(self, program: _Program) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        return self._program.ask("name", name)


def run_checks(code: str, replies: int, requests: int, verdict: int) -> None:
    """Run checks of a program; only checks that ran to their end say "passed"."""
    files = os.fdopen(requests, "wb"), os.fdopen(replies, "rb"), os.fdopen(verdict, "wb")
    program = _Program(*files)
    program.start()
    try:
        exec(compile(code, "checks.py", "exec"), _Names(program))
    except BaseException as error:
        program.end("failed", _shown(error))
    program.end("passed", "")


ROLES: Mapping[str, Callable[..., None]] = {"program": serve_program, "checks": run_checks}
