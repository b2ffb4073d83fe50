"""Calls whose arguments are JSON: Hermes and Qwen, Llama 3, Mistral, DeepSeek, Kimi, gpt-oss."""

import re
from collections.abc import Generator
from functools import partial
from typing import Any

from axcore.data.chat.parsers.pieces import Call, CallCounter, CallPart, PieceSteps
from axcore.data.chat.parsers.scanner import MalformedError, Scanner

CallSteps = Generator[CallPart | None, None, None]
_ARGUMENTS = ("arguments", "parameters")

BAR = "\N{FULLWIDTH VERTICAL LINE}"
DEEPSEEK_MARKS = tuple(
    f"<{BAR}tool▁{one}{BAR}>"
    for one in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
)


def json_arguments(scanner: Scanner, call: Call) -> CallSteps:
    """Yield each argument of a JSON object, and go behind it."""
    yield from scanner.spaces()
    yield from scanner.expect("{")
    yield from scanner.spaces()
    if (yield from scanner.takes("}")):
        return
    while True:
        key = yield from _key(scanner)
        value = yield from scanner.json_value()
        yield call.argument(key, value)
        yield from scanner.spaces()
        if (yield from scanner.expect(",", "}")) == "}":
            return


def _key(scanner: Scanner) -> Generator[None, None, str]:
    key = yield from scanner.json_value()
    if not isinstance(key, str):
        raise MalformedError(f"{key!r} is not the name of a field")
    yield from scanner.spaces()
    yield from scanner.expect(":")
    return key


def json_call(scanner: Scanner, call: Call) -> Generator[CallPart | None, None, str | None]:
    """Yield the arguments of `{"name": ..., "arguments": {...}}`, and go behind it.

    Returns:
        The arguments where the model wrote them as one text.
    """
    held: Any = None
    yield from scanner.spaces()
    yield from scanner.expect("{")
    while True:
        key = yield from _key(scanner)
        yield from scanner.spaces()
        is_object = (yield from scanner.peek()) == "{"
        if key in _ARGUMENTS and call.name and is_object:
            yield from json_arguments(scanner, call)
        else:
            value = yield from scanner.json_value()
            if key == "name" and isinstance(value, str):
                call.name = value
            elif key in _ARGUMENTS:
                held = value
        yield from scanner.spaces()
        if (yield from scanner.expect(",", "}")) == "}":
            break
    if held is None or isinstance(held, str):
        return held
    if not isinstance(held, dict) or not call.name:
        raise MalformedError("the arguments are not an object")
    for key, value in held.items():
        yield call.argument(key, value)
    return None


def hermes(scanner: Scanner, schemas: Any) -> PieceSteps:
    """Read `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in an answer."""
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        arguments = yield from json_call(scanner, call)
        yield from _close(scanner, "</tool_call>")
        yield call.end(arguments)

    while (yield from scanner.pass_until(["<tool_call>"], str)):
        yield from calls.read(scanner, read)


def _close(scanner: Scanner, mark: str) -> Generator[None]:
    """Go behind the mark that ends a call; a stop string or a limit may have cut it off."""
    yield from scanner.spaces()
    if (yield from scanner.peek()):
        yield from scanner.expect(mark)


def whole_json(scanner: Scanner, schemas: Any) -> PieceSteps:
    """Read an answer that is one `{"name": ..., "parameters": {...}}`, or several with `;`."""
    calls = CallCounter()
    yield from scanner.spaces()
    yield from scanner.takes("<|python_tag|>")
    yield from scanner.spaces()

    def read(call: Call) -> CallSteps:
        arguments = yield from json_call(scanner, call)
        yield from scanner.spaces()
        if not (yield from scanner.starts("{")) and (yield from scanner.peek()):
            yield from scanner.expect(";")
            yield from scanner.spaces()
        yield call.end(arguments)

    while (yield from scanner.starts("{")):
        before = calls.num_calls
        yield from calls.read(scanner, read)
        if calls.num_calls == before:
            break
    scanner.place = 0
    yield from scanner.pass_rest(str)


def mistral(scanner: Scanner, schemas: Any) -> PieceSteps:
    """Read `[TOOL_CALLS]name[ARGS]{...}`, and `[TOOL_CALLS][{"name": ..., "arguments": ...}]`."""
    calls = CallCounter()
    while (yield from scanner.pass_until(["[TOOL_CALLS]"], str)):
        mark = scanner.place
        yield from scanner.spaces()
        if (yield from scanner.starts("[")) and not (yield from scanner.starts("[TOOL", "[ARGS")):
            yield from _mistral_list(scanner, calls)
        else:
            scanner.place = mark
            yield from calls.read(scanner, partial(_mistral_call, scanner))


def _mistral_call(scanner: Scanner, call: Call) -> CallSteps:
    name, mark = yield from scanner.header("[ARGS]", "[CALL_ID]", "{")
    call.name, call.id = name.strip(), call.short_id()
    if mark == "[CALL_ID]":
        call.id, _ = yield from scanner.header("[ARGS]")
    elif mark == "{":
        scanner.place -= 1
    yield from json_arguments(scanner, call)
    yield call.end()


def _mistral_list(scanner: Scanner, calls: CallCounter) -> PieceSteps:
    is_open = True

    def read(call: Call) -> CallSteps:
        nonlocal is_open
        is_open = False
        yield from scanner.expect("[", ",")
        call.id = call.short_id()
        arguments = yield from json_call(scanner, call)
        yield from scanner.spaces()
        is_open = (yield from scanner.starts(",", "]")) == ","
        if not is_open and (yield from scanner.peek()):
            yield from scanner.expect("]")
        yield call.end(arguments)

    while is_open:
        yield from calls.read(scanner, read)


def deepseek(scanner: Scanner, schemas: Any) -> PieceSteps:
    """Read the calls of DeepSeek V3, with a name and a block of JSON, and of V3.1, without."""
    section, begin, sep, end, section_end = DEEPSEEK_MARKS
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        if scanner.text[: scanner.place] != begin:
            yield from scanner.spaces()
            yield from scanner.expect(begin)
        call.name, _ = yield from scanner.header(sep)
        is_block = call.name == "function"
        if is_block:
            call.name, _ = yield from scanner.header("\n```json\n")
        yield from json_arguments(scanner, call)
        yield from scanner.spaces()
        if is_block and (yield from scanner.peek()):
            yield from scanner.expect("```")
        yield from _close(scanner, end)
        # Between calls and behind the last there is nothing that a reader would want.
        mark = scanner.place
        yield from scanner.spaces()
        if not (yield from scanner.starts(begin, section_end)):
            scanner.place = mark
        yield from scanner.takes(section_end)
        yield call.end()

    while (yield from scanner.pass_until([section, begin], str)):
        yield from calls.read(scanner, read)


def kimi(scanner: Scanner, schemas: Any) -> PieceSteps:
    """Read `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}` of Kimi K2."""
    begin, section_end = "<|tool_call_begin|>", "<|tool_calls_section_end|>"
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        if scanner.text[: scanner.place] != begin:
            yield from scanner.spaces()
            yield from scanner.expect(begin)
        header, _ = yield from scanner.header("<|tool_call_argument_begin|>")
        # The model's own id, which its template writes in the next turn.
        call.id = header.strip()
        call.name = call.id.removeprefix("functions.").rpartition(":")[0]
        yield from json_arguments(scanner, call)
        yield from _close(scanner, "<|tool_call_end|>")
        mark = scanner.place
        yield from scanner.spaces()
        if not (yield from scanner.starts(begin, section_end)):
            scanner.place = mark
        yield from scanner.takes(section_end)
        yield call.end()

    while (yield from scanner.pass_until(["<|tool_calls_section_begin|>", begin], str)):
        yield from calls.read(scanner, read)


_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


def harmony_calls(scanner: Scanner, schemas: Any) -> PieceSteps:
    """Read `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>`."""
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        header, _ = yield from scanner.header("<|message|>")
        found = _RECIPIENT.search(header)
        if found is None:
            raise MalformedError("nobody is called")
        call.name = found[1]
        yield from json_arguments(scanner, call)
        yield from scanner.spaces()
        if (yield from scanner.peek()):
            yield from scanner.expect("<|call|>", "<|end|>")
        yield call.end()

    while (yield from scanner.pass_until(["<|channel|>"], str)):
        yield from calls.read(scanner, read)
