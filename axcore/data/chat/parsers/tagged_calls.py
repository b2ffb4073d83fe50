"""Calls whose arguments are between tags, or written as code: Qwen3-Coder, GLM, Gemma, Llama 4.

Where a format writes numbers and texts alike, the tool's schema says which it is.
"""

import ast
import re
from collections.abc import Generator, Mapping
from typing import Any

from axcore.data.chat.parsers.json_calls import BAR, CallSteps
from axcore.data.chat.parsers.pieces import Call, CallCounter, PieceSteps
from axcore.data.chat.parsers.scanner import MalformedError, Scanner, check_value, checked_json

Schemas = Mapping[str, Mapping[str, Any]]
"""The schema of the arguments of each function."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_WORDS = {"True": True, "False": False, "None": None}
"""Values as templates write them that print Python's."""

_MAX_DEPTH = 64


def typed(text: str, schemas: Schemas, function: str, key: str) -> Any:
    """Return the value that a text means; the text itself where the schema allows nothing else."""
    properties = schemas.get(function, {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    types = _types(schema)
    if types == {"string"}:
        return text
    try:
        value = _WORDS[text.strip()] if text.strip() in _WORDS else checked_json(text)
    except MalformedError:
        return text
    return value if not types or _is_of(value, types) else text


def _types(schema: Any) -> set[str]:
    """Return the types that a schema names; none where it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    # Whatever a client has sent: a schema that makes no sense says nothing.
    named = schema.get("type")
    found = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
    values = schema.get("enum")
    if not found and isinstance(values, list):
        found = {name for one in values for name in _TYPES if _is_of(one, {name})}
    for part in ("anyOf", "oneOf"):
        choices = schema.get(part)
        for one in choices if isinstance(choices, list) else ():
            found |= _types(one)
    return found


def _is_of(value: Any, types: set[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True
    return any(isinstance(value, _TYPES.get(one, ())) for one in types)


def qwen_coder(scanner: Scanner, schemas: Schemas) -> PieceSteps:
    """Read `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        if scanner.text.startswith("<tool_call>"):
            yield from scanner.spaces()
            yield from scanner.expect("<function=")
        call.name = (yield from scanner.header(">"))[0].strip()
        while True:
            yield from scanner.spaces()
            if (yield from scanner.expect("<parameter=", "</function>")) == "</function>":
                break
            key, _ = yield from scanner.header(">")
            text, _ = yield from scanner.until("</parameter>")
            text = text.removeprefix("\n").removesuffix("\n")
            yield call.argument(key, typed(text, schemas, call.name, key))
        mark = scanner.place
        yield from scanner.spaces()
        if not (yield from scanner.takes("</tool_call>")):
            scanner.place = mark
        yield call.end()

    while (yield from scanner.pass_until(["<tool_call>", "<function="], str)):
        yield from calls.read(scanner, read)


def glm(scanner: Scanner, schemas: Schemas) -> PieceSteps:
    """Read `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        name, mark = yield from scanner.header("<arg_key>", "</tool_call>")
        call.name = name.strip()
        if not re.fullmatch(r"[\w.:/-]+", call.name):
            raise MalformedError(f"{call.name!r:.40} is not a name")
        while mark == "<arg_key>":
            key, _ = yield from scanner.header("</arg_key>")
            yield from scanner.spaces()
            yield from scanner.expect("<arg_value>")
            text, _ = yield from scanner.until("</arg_value>")
            yield call.argument(key.strip(), typed(text, schemas, call.name, key.strip()))
            yield from scanner.spaces()
            mark = yield from scanner.expect("<arg_key>", "</tool_call>")
        yield call.end()

    while (yield from scanner.pass_until(["<tool_call>"], str)):
        yield from calls.read(scanner, read)


DSML = f"{BAR}DSML{BAR}"


def deepseek_dsml(scanner: Scanner, schemas: Schemas) -> PieceSteps:
    """Read the invokes of DeepSeek V3.2 and V4, whose parameters say what they are."""
    mark = DSML
    begin, end = f"<{mark}invoke", f"</{mark}invoke>"
    blocks = ("function_calls>", "tool_calls>")
    opens, closes = ([f"{start}{mark}{one}" for one in blocks] for start in ("<", "</"))
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        if not scanner.text.startswith(begin):
            yield from scanner.spaces()
            yield from scanner.expect(begin)
        call.name = _attribute((yield from scanner.header(">"))[0], "name")
        while True:
            yield from scanner.spaces()
            if (yield from scanner.expect(f"<{mark}parameter", end)) == end:
                break
            header, _ = yield from scanner.header(">")
            text, _ = yield from scanner.until(f"</{mark}parameter>")
            is_text = _attribute(header, "string") == "true"
            value = text if is_text else checked_json(text)
            yield call.argument(_attribute(header, "name"), value)
        place = scanner.place
        yield from scanner.spaces()
        if not (yield from scanner.starts(begin, *closes)):
            scanner.place = place
        yield from scanner.takes(*closes)
        yield call.end()

    while (yield from scanner.pass_until([*opens, begin], str)):
        yield from calls.read(scanner, read)


def _attribute(header: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', header)
    if found is None:
        raise MalformedError(f"there is no {name} in {header!r:.80}")
    return found[1]


def gemma(scanner: Scanner, schemas: Schemas) -> PieceSteps:
    """Read `<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>` of Gemma 4."""
    return _gemma(scanner, "<|tool_call>", "<tool_call|>", '<|"|>')


def function_gemma(scanner: Scanner, schemas: Schemas) -> PieceSteps:
    """Read `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`."""
    return _gemma(scanner, "<start_function_call>", "<end_function_call>", "<escape>")


def _gemma(scanner: Scanner, begin: str, end: str, quote: str) -> PieceSteps:
    calls = CallCounter()

    def read(call: Call) -> CallSteps:
        yield from scanner.expect("call:")
        call.name = (yield from scanner.header("{"))[0].strip()
        if not (yield from scanner.takes("}")):
            mark = ","
            while mark == ",":
                key = yield from _gemma_key(scanner, quote)
                yield call.argument(key, (yield from _gemma_value(scanner, quote)))
                mark = yield from scanner.expect(",", "}")
        if (yield from scanner.peek()):
            yield from scanner.expect(end)
        yield call.end()

    while (yield from scanner.pass_until([begin], str)):
        yield from calls.read(scanner, read)


def _gemma_key(scanner: Scanner, quote: str) -> Generator[None, None, str]:
    if (yield from scanner.takes(quote)):
        key, _ = yield from scanner.header(quote)
        yield from scanner.expect(":")
        return key
    return (yield from scanner.header(":"))[0].strip()


def _gemma_value(scanner: Scanner, quote: str, depth: int = 0) -> Generator[None, None, Any]:
    if depth > _MAX_DEPTH:
        raise MalformedError("values within values, too deep to be read")
    if (yield from scanner.takes(quote)):
        return (yield from scanner.until(quote))[0]
    opened = yield from scanner.takes("{", "[")
    if opened is None:
        return (yield from scanner.json_value())
    closed = {"{": "}", "[": "]"}[opened]
    keys, values = list[str](), list[Any]()
    mark = "," if not (yield from scanner.takes(closed)) else closed
    while mark == ",":
        if opened == "{":
            keys.append((yield from _gemma_key(scanner, quote)))
        values.append((yield from _gemma_value(scanner, quote, depth + 1)))
        mark = yield from scanner.expect(",", closed)
    return dict(zip(keys, values, strict=True)) if opened == "{" else values


_CODE = re.compile(r"""["'()\[\]{},]""")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_JSON_WORDS = {"true": True, "false": False, "null": None}


def pythonic(scanner: Scanner, schemas: Schemas) -> PieceSteps:
    """Read an answer that is a list of Python's calls, `[name(key="text", other=1), ...]`."""
    calls = CallCounter()
    yield from scanner.spaces()
    yield from scanner.takes("<|python_start|>")
    yield from scanner.spaces()
    is_open = (yield from scanner.starts("[")) is not None

    def read(call: Call) -> CallSteps:
        nonlocal is_open
        is_open = False
        yield from scanner.expect("[", ",")
        yield from scanner.spaces()
        call.name = _checked_name((yield from scanner.header("("))[0])
        yield from scanner.spaces()
        mark = ")" if (yield from scanner.takes(")")) else ","
        while mark == ",":
            yield from scanner.spaces()
            key = _checked_name((yield from scanner.header("="))[0].strip())
            text, mark = yield from _python_value(scanner)
            yield call.argument(key, _literal(text))
        yield from scanner.spaces()
        is_open = (yield from scanner.starts(",", "]")) == ","
        if not is_open:
            yield from scanner.expect("]")
            yield from scanner.spaces()
            yield from scanner.takes("<|python_end|>")
        yield call.end()

    while is_open:
        yield from calls.read(scanner, read)
    if not calls.num_calls:
        scanner.place = 0
    yield from scanner.pass_rest(str)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise MalformedError(f"{name!r:.40} is not a name")
    return name


def _python_value(scanner: Scanner) -> Generator[None, None, tuple[str, str]]:
    """Return the text of a value, and the comma or bracket behind it."""
    begin, depth = scanner.place, 0
    while True:
        while (found := _CODE.search(scanner.text, scanner.place)) is None:
            scanner.place = len(scanner.text)
            yield from scanner.more()
        scanner.place, sign = found.end(), found.group()
        if sign in "\"'":
            yield from _python_string_end(scanner, sign)
        elif depth == 0 and sign in ",)":
            return scanner.text[begin : found.start()], sign
        elif sign != ",":
            depth += 1 if sign in "([{" else -1
            if depth < 0:
                raise MalformedError("a bracket closes nothing")


def _python_string_end(scanner: Scanner, quote: str) -> Generator[None]:
    ends = re.compile(rf"[{quote}\\]")
    while True:
        while (found := ends.search(scanner.text, scanner.place)) is None:
            scanner.place = len(scanner.text)
            yield from scanner.more()
        scanner.place = found.end()
        if found.group() == quote:
            return
        while scanner.place >= len(scanner.text):  # what is escaped
            yield from scanner.more()
        scanner.place += 1


def _literal(text: str) -> Any:
    """Return what a literal of Python, or a word of JSON, says."""
    text = text.strip()
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    try:
        value = ast.literal_eval(text)
        check_value(value)  # bytes, sets and complex numbers are not values
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise MalformedError(str(error)) from error
    return value
