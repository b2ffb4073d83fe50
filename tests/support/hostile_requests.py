"""Requests that cost as much as their sender can make them, by name: a path, and a body."""

import json
import random
from typing import Any, NamedTuple

MIB = 1 << 20
ALMOST_ALL = 4 * MIB - 4096
"""Bytes of a text that fills the longest body that a server reads."""

HOSTILE_TEMPLATE = """
{%- if bomb == 'power' %}{{ 10 ** (10 ** 8) }}{% endif %}
{%- if bomb == 'loops' %}
    {%- for a in range(90000) %}{% for b in range(90000) %}{% set c = b %}{% endfor %}{% endfor %}
{%- endif %}
{%- if bomb == 'text' %}{{ 'ab' * 10 ** 9 }}{% endif %}
{%- if bomb == 'output' %}
    {%- for a in range(90000) %}{% for b in range(900) %}{{ 'abcdefgh' }}{% endfor %}{% endfor %}
{%- endif %}
{%- if bomb == 'wide' %}{{ 'a' | center(3 * 10 ** 9) }}{% endif %}
{%- if bomb == 'format' %}{{ '%2000000000d' | format(1) }}{% endif %}
{%- if bomb == 'macro' %}
    {%- macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}
    {{- twice(60) }}
{%- endif %}
{%- if bomb == 'list' %}{{ (range(90000) | list) * 20000 }}{% endif %}
{%- if bomb == 'given' %}{% for a in range(size) %}{% for b in range(size) %}{{ a }}{% endfor %}
    {%- endfor %}{% endif %}
"""
"""Put before a template: a model of a stranger's, whose template never ends."""


class Hostile(NamedTuple):
    """A request.

    Args:
        path: Where it is sent.
        body: JSON, or what is sent in its place.
    """

    path: str
    body: bytes


def hostile_requests() -> dict[str, Hostile]:
    """Return the requests by name."""
    return {**_texts(), **_grammars(), **_schemas(), **_templates(), **_json(), **_settings()}


def _complete(**fields: Any) -> Hostile:
    body = {"prompt": "ab", "max_tokens": 4, **fields}
    return Hostile("v1/completions", json.dumps(body).encode())


def _chat(content: str = "hi", **fields: Any) -> Hostile:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}
    return Hostile("v1/chat/completions", json.dumps(body).encode())


def _texts() -> dict[str, Hostile]:
    many = [{"role": "user", "content": "word " * 180}] * 4000
    parts = [{"type": "text", "text": "a"}] * 100_000
    long = "a" * ALMOST_ALL
    return {
        "a text without a space": _complete(prompt=long),
        "a text of words": _complete(prompt="hello world " * (ALMOST_ALL // 12)),
        "a text of spaces": _complete(prompt=" " * ALMOST_ALL),
        "a text of special tokens": _complete(prompt="<|end|>" * (ALMOST_ALL // 7)),
        "a text of escapes": Hostile(
            "v1/completions", b'{"prompt": "' + b"\\u4e2d" * (ALMOST_ALL // 6) + b'"}'
        ),
        "64 long texts": _complete(prompt=["hello " * 10_000] * 64),
        "64 lists of tokens": _complete(prompt=[[97] * 16_000] * 64),
        "a million tokens": _complete(prompt=[97] * 1_000_000),
        "an echo of a long text": _complete(prompt=long, echo=True, max_tokens=0, logprobs=20),
        "a long message": _chat(long),
        "4,000 messages": _chat(messages=many),
        "100,000 parts": _chat(messages=[{"role": "user", "content": parts}]),
        "tokenize a text": Hostile("tokenize", json.dumps({"prompt": long}).encode()),
        "tokenize messages": Hostile("tokenize", json.dumps({"messages": many}).encode()),
        "detokenize a million": Hostile(
            "detokenize", json.dumps({"tokens": [97] * 1_000_000}).encode()
        ),
        "detokenize numbers": Hostile("detokenize", b'{"tokens": [' + b"1e5," * 900_000 + b"1]}"),
    }


def _lark(text: str) -> Hostile:
    return _complete(response_format={"type": "grammar", "grammar": text})


def _regex(text: str) -> Hostile:
    return _complete(response_format={"type": "regex", "regex": text})


def lark_words(number: int, seed: int = 0) -> str:
    """Return a Lark grammar of so many words."""
    letters = random.Random(seed)
    words = ("".join(letters.choices("abcdefghij", k=8)) for _ in range(number))
    return "start: " + " | ".join(f'"{word}"' for word in words)


def lark_rules(number: int) -> str:
    """Return a Lark grammar of so many rules, each of which needs the next."""
    rules = [f'r{i}: "a" r{i + 1} | "b" r{i + 1}' for i in range(number)]
    return "\n".join(["start: r0", *rules, f'r{number}: "c"'])


def _grammars() -> dict[str, Hostile]:
    deep = 50_000
    return {
        "15,000 words": _lark(lark_words(15_000)),
        "40,000 words": _lark(lark_words(40_000)),
        "80,000 words": _lark(lark_words(80_000)),
        "250,000 words": _lark(lark_words(250_000)),
        "3,000 rules": _lark(lark_rules(3_000)),
        "20,000 rules": _lark(lark_rules(20_000)),
        "unknown names": _lark("start: " + "x " * 500_000),
        "brackets": _lark("start: " + "(" * deep + '"a"' + ")" * deep),
        "tokens that there are not": _lark("start: " + " | ".join(["<[99999999]>"] * 60_000)),
        "a long line": _lark('start: "' + "a" * 3_000_000 + '"'),
        "a long pattern": _regex("|".join(f"{i:07d}" for i in range(400_000))),
        "a deep pattern": _regex("(" * deep + "a" + ")" * deep),
        "repeats in repeats": _regex("(((a{1,999}){1,999}){1,999}b?){1,999}"),
        "letters of all scripts": _regex(r"(\p{L}{1,900}\P{L}{1,900}){900}"),
        "a pattern with memory": _regex("(.*a.{400}){90}"),
    }


def _object(number: int, *, is_required: bool) -> dict[str, Any]:
    names = [f"field_{i}" for i in range(number)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {**schema, "required": names} if is_required else schema


def _schema(schema: Any) -> Hostile:
    wrapped = {"name": "s", "schema": schema}
    return _complete(response_format={"type": "json_schema", "json_schema": wrapped})


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _schemas() -> dict[str, Hostile]:
    tower = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(40)
    }
    tools = [
        {
            "type": "function",
            "function": {"name": f"f{i}", "parameters": _object(390, is_required=True)},
        }
        for i in range(128)
    ]
    return {
        "5,000 properties": _schema(_object(5000, is_required=False)),
        "4,000 required properties": _schema(_object(4000, is_required=True)),
        "400 optional properties": _schema(_object(400, is_required=False)),
        "a schema in a schema": _schema(_nested(300)),
        "100,000 values": _schema({"enum": [f"value {i}" for i in range(100_000)]}),
        "a tower of references": _schema(
            {"$defs": {**tower, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"}
        ),
        "unions of objects": _schema(
            {"allOf": [{"anyOf": [_object(9, is_required=False)] * 9} for _ in range(9)]}
        ),
        "128 forced tools": _chat(tools=tools, tool_choice="required"),
    }


def _templates() -> dict[str, Hostile]:
    kinds = ("power", "loops", "text", "output", "wide", "format", "macro", "list")
    bombs = {f"template: {kind}": _chat(chat_template_kwargs={"bomb": kind}) for kind in kinds}
    given = {"bomb": "given", "size": 100_000}
    return {**bombs, "template: a number that was sent": _chat(chat_template_kwargs=given)}


def _json() -> dict[str, Hostile]:
    keys = ",".join(f'"{i}":""' for i in range(350_000)).encode()
    bodies = {
        "arrays in arrays": b"[" * ALMOST_ALL,
        "arrays 900 deep": b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        "objects in objects": b'{"a":' * (ALMOST_ALL // 5),
        "a million arrays": b'{"prompt": [' + b"[]," * (ALMOST_ALL // 3) + b"[]]}",
        "half a million objects": b'{"prompt": [' + b'{"a":1},' * 500_000 + b"1]}",
        "350,000 fields": b'{"user": {' + keys + b"}}",
        "350,000 unknown fields": b"{" + keys + b"}",
        "digits": b'{"prompt": [' + b",".join([b"9" * 4200] * 980) + b"]}",
        "one number": b'{"seed": ' + b"9" * ALMOST_ALL + b"}",
        "one fraction": b'{"seed": 0.' + b"9" * ALMOST_ALL + b"}",
        "half a pair below a long name": b'{"'
        + b"k" * MIB
        + b'": ['
        + b'"",' * 700_000
        + b'"\\ud800"]}',
        "a field with a long name": b'{"' + b"promptt" * (ALMOST_ALL // 7) + b'": 1}',
    }
    return {name: Hostile("v1/completions", body) for name, body in bodies.items()}


def _settings() -> dict[str, Hostile]:
    stops = ["ab" * 499 + chr(97 + i) for i in range(16)]
    return {
        "stop texts of 64 answers": _complete(stop=stops, n=64, max_tokens=100),
        "a million stop texts": _complete(stop=["a"] * 700_000),
        "biases": _complete(logit_bias={str(i): 1 for i in range(200_000)}),
        "64 answers to a long prompt": _complete(prompt=[97] * 1900, n=64, max_tokens=100),
        "64 answers with all there is": _complete(
            prompt=[97] * 900, n=64, max_tokens=0, echo=True, logprobs=20
        ),
        "a billion answers": _complete(n=10**9, best_of=10**9),
        "tools without end": _chat(tools=[{"type": "function"}] * 150_000),
        "calls without end": _chat(
            messages=[
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 128,
                }
            ]
            * 400
        ),
    }
