"""Reasoning and calls are found in an answer however it is cut into pieces."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.data.chat.parsers.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerReader,
    merged,
    named_format,
)
from axcore.data.chat.parsers.pieces import CallPart, Reasoning
from axcore.errors import ConfigError

TOOLS = {one.name: one for one in TOOL_FORMATS}
THINKING = {one.name: one for one in REASONING_FORMATS}
SCHEMAS = {
    "add": {
        "properties": {
            "a": {"type": "integer"},
            "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "c": {"type": "array"},
        }
    }
}
ADD = ("add", {"a": 1, "b": 'x <y> "ä"', "c": [1, {"d": None}]})
NOW = ("now", {})
JSON_ADD = json.dumps(ADD[1], ensure_ascii=False)

WRITTEN = {
    "hermes": (
        f'<tool_call>\n{{"name": "add", "arguments": {JSON_ADD}}}\n</tool_call>',
        '<tool_call>{"arguments": {}, "name": "now"}</tool_call>',
    ),
    "llama": (f'{{"name": "add", "parameters": {JSON_ADD}}}; ', '{"name": "now"}'),
    "mistral": (f"[TOOL_CALLS]add[ARGS]{JSON_ADD}", "[TOOL_CALLS]now{}"),
    "deepseek": (
        f"<||tool▁calls▁begin||><||tool▁call▁begin||>add<||tool▁sep||>{JSON_ADD}<||tool▁call▁end||>\n",
        "<||tool▁call▁begin||>function<||tool▁sep||>now\n```json\n{}\n```<||tool▁call▁end||>"
        "<||tool▁calls▁end||>",
    ),
    "deepseek-dsml": (
        '<||DSML||function_calls>\n<||DSML||invoke name="add">\n'
        '<||DSML||parameter name="a" string="false">1</||DSML||parameter>\n'
        '<||DSML||parameter name="b" string="true">x <y> "ä"</||DSML||parameter>\n'
        '<||DSML||parameter name="c" string="false">[1, {"d": null}]</||DSML||parameter>\n'
        "</||DSML||invoke>\n",
        '<||DSML||invoke name="now">\n</||DSML||invoke>\n</||DSML||function_calls>',
    ),
    "qwen-coder": (
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n"
        'x <y> "ä"\n</parameter>\n<parameter=c>\n[1, {"d": null}]\n</parameter>\n</function>\n'
        "</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    "glm": (
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
        '<arg_value>x <y> "ä"</arg_value>\n<arg_key>c</arg_key>\n'
        '<arg_value>[1, {"d": null}]</arg_value>\n</tool_call>',
        "<tool_call>now</tool_call>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        f"<|tool_call_argument_begin|>{JSON_ADD}<|tool_call_end|>",
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
    ),
    "pythonic": ("""[add(a=1, b='x <y> "ä"', c=[1, {"d": None}]), """, "now()]"),
    "gemma": (
        '<|tool_call>call:add{a:1,b:<|"|>x <y> "ä"<|"|>,c:[1,{d:null}]}<tool_call|>',
        "<|tool_call>call:now{}<tool_call|>",
    ),
    "function-gemma": (
        '<start_function_call>call:add{a:1,b:<escape>x <y> "ä"<escape>,c:[1,{d:null}]}'
        "<end_function_call>",
        "<start_function_call>call:now{}<end_function_call>",
    ),
    "gpt-oss": (
        f"<|channel|>commentary to=functions.add <|constrain|>json<|message|>{JSON_ADD}<|call|>",
        "<|channel|>commentary to=functions.now<|message|>{}",
    ),
}
WRITTEN = {
    name: tuple(text.replace("||", "\N{FULLWIDTH VERTICAL LINE}") for text in texts)
    for name, texts in WRITTEN.items()
}
WHOLE = ("llama", "pythonic")
"""Formats of which calls are the full answer."""

tool_formats = pytest.mark.parametrize("name", TOOLS)
cuts = st.lists(st.integers(0, 400), max_size=12)


def read(reader, pieces):
    """Returns texts and calls without their cuts, calls as names and values."""
    found = merged([one for piece in pieces for one in reader.read(piece)] + reader.finish())
    return [
        (one.name, json.loads(one.arguments)) if isinstance(one, CallPart) else one for one in found
    ]


def cut(text, places):
    places = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


def tools(name, **options):
    return AnswerReader(None, TOOLS[name], schemas=SCHEMAS, **options)


def test_there_is_an_example_of_each_format():
    assert WRITTEN.keys() == TOOLS.keys()


@tool_formats
@settings(max_examples=20)
@given(places=cuts)
def test_calls_do_not_depend_on_how_the_answer_is_cut(name, places):
    before = "" if name in WHOLE else "Let me see <tool[TOOL<||tool "
    text = before + "".join(WRITTEN[name])
    expected = [*([before] if before else []), ADD, NOW]
    assert read(tools(name), cut(text, places)) == expected
    assert read(tools(name), [*text]) == expected


@tool_formats
def test_a_call_that_is_cut_off_or_wrong_stays_text_and_is_read_alike_in_any_pieces(name):
    text = WRITTEN[name][0]
    for end in range(1, len(text) - 1):
        for written in (text[:end], f"{text[:end]}\0 and {text[end:]}"):
            whole, pieces = tools(name), tools(name)
            found = read(whole, [written])
            assert found == read(pieces, [*written])
            calls = [one for one in found if not isinstance(one, str)]
            assert calls or "".join(found) == written


@tool_formats
def test_arguments_are_sent_one_by_one_and_never_more_than_was_known(name):
    reader, parts = tools(name), []
    for letter in WRITTEN[name][0]:
        parts += reader.read(letter)
    parts = [one for one in [*parts, *reader.finish()] if isinstance(one, CallPart)]
    assert (parts[0].name, parts[0].arguments) == ("add", '{"a": 1')
    assert {one.name for one in parts[1:]} == {None}
    assert len(parts) == 4
    assert json.loads("".join(one.arguments for one in parts)) == ADD[1]


@tool_formats
def test_a_call_alone_is_read_where_one_is_asked_for(name):
    text = "".join(WRITTEN[name])
    assert read(tools(name, max_calls=1), [*text])[:1] == [ADD]
    assert len(read(tools(name, max_calls=1), [text])) == 1


@pytest.mark.parametrize(
    "value", [r'"\ud800"', "1e999", "NaN", "1" * 5000, "[" * 2000 + "]" * 2000]
)
def test_a_value_that_json_cannot_have_makes_no_call(value):
    written = f'<tool_call>{{"name": "add", "arguments": {{"a": {value}}}}}</tool_call>'
    assert read(tools("hermes"), [written]) == [written]
    written = f"[add(a={value})]"
    assert read(tools("pythonic"), [written]) == [written]


@pytest.mark.parametrize(
    "schema", [{"type": [{}]}, {"anyOf": 1}, {"anyOf": [1, {"type": 3}]}, {"enum": 4}, True, 5]
)
def test_a_schema_that_makes_no_sense_says_nothing(schema):
    reader = AnswerReader(None, TOOLS["glm"], schemas={"add": {"properties": {"a": schema}}})
    written = "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    assert read(reader, [written]) == [("add", {"a": 1})]


@pytest.mark.parametrize("name", [one.name for one in TOOL_FORMATS if one.end])
def test_a_call_is_read_where_its_end_stopped_the_answer(name):
    text = "".join(WRITTEN[name]).partition(TOOLS[name].end)[0]
    assert read(tools(name, max_calls=1), [*text]) == [ADD]


def test_a_mistral_list_is_read_and_each_id_is_one_that_its_template_takes():
    text = f'[TOOL_CALLS] [{{"name": "add", "arguments": {JSON_ADD}}}, {{"name": "now"}}]'
    assert read(tools("mistral"), [*text]) == [ADD, NOW]
    [part, *_] = tools("mistral").read(text)
    assert len(part.id) == 9
    assert part.id.isalnum()


def test_kimi_gives_its_own_ids():
    [part, *_] = tools("kimi").read(WRITTEN["kimi"][0])
    assert part.id == "functions.add:0"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.0", 1.0), ("one", "one"), ("1e999", "1e999"), ("NaN", "NaN"), ("null", "null")],
)
def test_a_value_between_tags_is_what_its_schema_says(text, value):
    written = f"<tool_call>add<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    assert read(tools("glm"), [written]) == [("add", {"a": value})]
    as_text = written.replace("<arg_key>a", "<arg_key>b")
    assert read(tools("glm"), [as_text]) == [("add", {"b": None if text == "null" else text})]


@pytest.mark.parametrize("name", [one for one in THINKING if one != "gpt-oss"])
@settings(max_examples=20)
@given(places=cuts, is_open=st.booleans())
def test_reasoning_loses_and_repeats_no_character(name, places, is_open):
    begin, end = THINKING[name].begin, THINKING[name].end
    text = f"{'' if is_open else begin}\n1 < 2 {end[:3]} so\n{end}\n\n{end} and {begin} "
    reader = AnswerReader(THINKING[name], is_open=is_open)
    expected = [Reasoning(f"\n1 < 2 {end[:3]} so\n"), f"\n\n{end} and {begin} "]
    assert read(reader, cut(text, places)) == expected


@pytest.mark.parametrize("text", ["<thin", "Hello <think>a</think>", "", " ", "</think>"])
def test_an_answer_without_reasoning_is_text(text):
    assert read(AnswerReader(THINKING["think"]), [*text]) == ([text] if text else [])


def test_reasoning_that_has_no_end_is_reasoning():
    assert read(AnswerReader(THINKING["think"], is_open=True), ["a </th"]) == [Reasoning("a </th")]


HARMONY = (
    "<|channel|>analysis<|message|>Add 1 <2>.<|end|><|start|>assistant<|channel|>commentary"
    f"<|message|>I add.<|end|><|start|>assistant to=functions.add<|channel|>commentary json"
    f"<|message|>{JSON_ADD}<|call|>"
)


@settings(max_examples=40)
@given(cuts)
def test_channels_are_read_however_they_are_cut(places):
    for tail, last in (("", []), ("<|start|>assistant<|channel|>final<|message|>3", ["3"])):
        reader = AnswerReader(THINKING["gpt-oss"], TOOLS["gpt-oss"])
        found = read(reader, cut(HARMONY + tail, places))
        assert found == [Reasoning("Add 1 <2>."), "I add.", ADD, *last]


@pytest.mark.parametrize("text", ["plain", "<|channel|>no message", " to=functions.x"])
def test_what_is_no_channel_is_text(text):
    assert read(AnswerReader(THINKING["gpt-oss"], TOOLS["gpt-oss"]), [*text]) == [text]


@pytest.mark.parametrize(
    ("tokens", "number"),
    [
        (["<think>", "a", "b", "</think>", "c"], 4),
        (["<", "think>", "a", "</", "think>", "c", "d"], 5),
        (["c", "<think>", "a"], 0),
        (["<think>", "a", ""], 3),
        (["<think>", "</think>", "c"], 0),
    ],
)
def test_tokens_of_reasoning_are_counted_with_their_marks(tokens, number):
    reader = AnswerReader(THINKING["think"])
    for token in tokens:
        reader.read(token, 1)
    reader.finish()
    assert reader.num_reasoning_tokens == number


SIGNS = {
    "hermes": "... <tool_call> ...",
    "glm": "<tool_call><arg_key>",
    "qwen-coder": "<tool_call><function=a><parameter=b>",
    "llama": '... "parameters" ... ipython ...',
    "mistral": "[TOOL_CALLS]",
    None: "{{ messages }}",
}


@pytest.mark.parametrize("name", SIGNS)
def test_the_format_is_that_of_the_template(name):
    found = named_format(TOOL_FORMATS, None, SIGNS[name], where="--tool-parser")
    assert (found and found.name) == name
    assert named_format(TOOL_FORMATS, "none", SIGNS[name], where="--tool-parser") is None


def test_a_format_that_there_is_not_is_an_error():
    with pytest.raises(ConfigError, match="no format 'x'"):
        named_format(REASONING_FORMATS, "x", None, where="--reasoning-parser")
