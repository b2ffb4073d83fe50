"""Calls of tools: which are forced, how they are read, and how responses have them."""

import contextlib
import json
from types import MappingProxyType

import anyio
import numpy as np
import openai
import pytest
import tokenizers
from chat_tokenizer import TEMPLATE, write_chat_tokenizer
from model_server import SameSeed, byte_tokenizer, chat_tokenizer, serving_model

from axcore.data import tokenizer_in
from axcore.data.chat.parsers.formats import merged, special_marks
from axcore.data.chat.parsers.pieces import CallPart
from axcore.inference.detokenizer import IncrementalDetokenizer
from axcore.inference.grammar import GrammarCompiler, mask_words
from axcore.serving import ServedModel
from axcore.serving.answers import AnswerFormat, ParserNames
from axcore.serving.tools import ToolChoice, forced_calls

FAMILIES = {
    "marked": TEMPLATE + "{# <tool_call> #}",
    "whole": TEMPLATE + '{# "parameters" ipython #}',
    "unknown": TEMPLATE,
}
ONE_CALL = {
    "marked": '<tool_call>\n{"name": "add", "arguments": {"a": true}}\n</tool_call>',
    "whole": '{"name": "add", "parameters": {"a": true}}',
    "unknown": '{"name": "add", "arguments": {"a": true}}',
}
MARKS = ("<tool_call>", "</tool_call>")
BETWEEN = {"marked": "\n", "whole": "; ", "unknown": "; "}
BOOLEAN = {"type": "object", "properties": {"a": {"$ref": "#/$defs/flag"}}, "required": ["a"]}
PARAMETERS = {**BOOLEAN, "additionalProperties": False, "$defs": {"flag": {"type": "boolean"}}}
ADD = {"name": "add", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": one} for one in (ADD, {"name": "now"})]
NAMED_ADD = {"type": "function", "function": {"name": "add"}}
TURNS = [{"role": "user", "content": "a"}]
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def clients(chat_engine, tmp_path_factory):
    """Clients of one random model, with the chat template of each family."""
    with contextlib.ExitStack() as stack:
        found = {}
        for family, template in FAMILIES.items():
            folder = write_chat_tokenizer(tmp_path_factory.mktemp(family), template)
            served = ServedModel(
                name="small",
                engine=chat_engine,
                tokenizer=chat_tokenizer(folder),
                max_length=chat_engine.max_length,
                seeds=SameSeed(),
            )
            found[family] = stack.enter_context(serving_model(served)).client()
        yield found


def format_of(choice, family, tokenizer=None):
    tokenizer = tokenizer or byte_tokenizer()
    return AnswerFormat.of(
        ParserNames(), tokenizer, FAMILIES[family], choice, splits_reasoning=False
    )


def calls_in(answer, text):
    """Returns the calls of an answer, and the texts that are not between two."""
    reader = answer.reader("", "")
    found = merged([*reader.read(text), *reader.finish()])
    return [
        (one.name, one.arguments) if isinstance(one, CallPart) else one
        for one in found
        if one != "\n"
    ]


def forced(choice, family=None, special=MappingProxyType({})):
    found = None if family is None else format_of(choice, family).family
    return forced_calls(choice, found, special)


@pytest.mark.parametrize("is_special", [False, True])
def test_a_call_is_forced_where_its_marks_are_tokens(tmp_path, is_special):
    """Those of Qwen are text as well, `special: false`; those of others have no text at all."""
    added = [tokenizers.AddedToken(mark, special=is_special) for mark in MARKS]
    tokenizer = chat_tokenizer(write_chat_tokenizer(tmp_path, FAMILIES["marked"], added=added))
    choice = ToolChoice(tools=TOOLS, forced=(ADD,), is_single=True)
    answer = format_of(choice, "marked", tokenizer)
    special = special_marks(tokenizer, answer.family)
    assert answer.special == special
    assert list(special) == (list(MARKS) if is_special else [])
    grammar = forced_calls(choice, answer.family, special)
    tokens = tokenizer.encode_placed(ONE_CALL["marked"]).tokens.tolist()
    assert (tokens[0], tokens[-1]) == (258, 259)
    matcher = GrammarCompiler(tokenizer).matcher(grammar)
    mask = np.zeros(mask_words(tokenizer.vocab_size), np.uint32)
    matcher.fill(mask)
    assert np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() == [258]
    matcher.accept(tokens)
    assert matcher.is_finished
    text = IncrementalDetokenizer(tokenizer, visible=answer.visible_tokens).push(tokens).text
    assert calls_in(answer, text) == [("add", '{"a": true}')]


def ask(client, **fields):
    chosen = {"tools": TOOLS, "parallel_tool_calls": False, "seed": 1, **fields}
    return client.chat.completions.create(model="small", messages=TURNS, **chosen)


def check_call(name, arguments):
    if name == "add":
        assert set(json.loads(arguments)) == {"a"}
        assert isinstance(json.loads(arguments)["a"], bool)
    else:
        assert (name, arguments) == ("now", "{}")


@families
def test_a_random_model_makes_the_call_that_is_asked_for(clients, family):
    for choice in (NAMED_ADD, "required"):
        answer = ask(clients[family], tool_choice=choice, n=4)
        for one in answer.choices:
            (call,) = one.message.tool_calls
            assert (one.finish_reason, one.message.content) == ("tool_calls", None)
            assert call.function.name in (["add"] if choice is NAMED_ADD else ["add", "now"])
            check_call(call.function.name, call.function.arguments)


@families
def test_a_stream_has_the_call_of_the_whole_answer(clients, family):
    whole = ask(clients[family], tool_choice="required").choices[0].message.tool_calls[0]
    pieces = list(ask(clients[family], tool_choice="required", stream=True))
    deltas = [piece.choices[0].delta for piece in pieces]
    first, *rest = [call for delta in deltas for call in delta.tool_calls or ()]
    assert {call.function.name for call in rest} <= {None}
    assert first.function.name == whole.function.name
    arguments = "".join(call.function.arguments for call in (first, *rest))
    assert arguments == whole.function.arguments
    assert not any(delta.content for delta in deltas)
    assert pieces[-1].choices[0].finish_reason == "tool_calls"


def test_what_cannot_be_forced_is_refused_with_what_can(clients):
    refused = [
        (
            {"tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice.function.name",
            "names the function 'sub'; tools has 'add', 'now'",
        ),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools, and there are"),
        ({"tool_choice": NAMED_ADD, "tools": None}, "tool_choice", "needs tools, and there are"),
        ({"tool_choice": "any"}, "tool_choice", "is 'any'; expected 'none' or 'auto' or"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name", "is missing"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "tool_choice forces a call, and response_format wants another text",
        ),
    ]
    for schema, text in [
        ({"type": "string"}, "'a' have the type 'string'; expected 'object'"),
        ({"properties": {"b": {"type": "text"}}}, "can be forced: the grammar.*Invalid type: text"),
    ]:
        tool = {"type": "function", "function": {"name": "a", "parameters": schema}}
        refused.append(({"tool_choice": "required", "tools": [tool]}, "tools", text))
    for fields, param, text in refused:
        with pytest.raises(openai.BadRequestError, match=text) as raised:
            ask(clients["unknown"], **fields)
        assert raised.value.param == param
        assert "call_0" not in raised.value.message


@families
def test_only_a_choice_of_several_calls_lets_a_second_one_follow(family):
    compiler, tokenizer = GrammarCompiler(byte_tokenizer()), byte_tokenizer()
    call = ONE_CALL[family]
    for is_single in (False, True):
        choice = ToolChoice(tools=TOOLS, forced=(ADD,), is_single=is_single)
        matcher = compiler.matcher(forced(choice, family))
        matcher.accept([token for token in tokenizer.encode(call).tolist() if token < 256])
        assert matcher.is_match
        assert matcher.is_finished == is_single
        text = call if is_single else BETWEEN[family].join([call, call])
        found = calls_in(format_of(choice, family), text)
        assert found == [("add", '{"a": true}')] * (1 if is_single else 2)


@pytest.mark.parametrize(
    ("more", "is_match"),
    [({}, False), ({"additionalProperties": True}, True), ({"allOf": [{}]}, True)],
)
def test_a_forced_call_has_no_argument_that_its_function_does_not_name(more, is_match):
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, **more}
    choice = ToolChoice(tools=TOOLS, forced=({"name": "add", "parameters": parameters},))
    matcher = GrammarCompiler(byte_tokenizer()).matcher(forced(choice))
    text = b'{"name": "add", "arguments": {"a": true, "b": 1}}'
    assert (matcher.count_valid(list(text)) == len(text)) == is_match


def test_names_of_any_letters_can_be_forced():
    compiler, tokenizer = GrammarCompiler(byte_tokenizer()), byte_tokenizer()
    for name in ('a"b\\c\n', "größe/{}", "%json"):
        choice = ToolChoice(tools=TOOLS, forced=({"name": name},), is_single=True)
        text = json.dumps({"name": name, "arguments": {}}, ensure_ascii=False)
        matcher = compiler.matcher(forced(choice))
        matcher.accept([token for token in tokenizer.encode(text).tolist() if token < 256])
        assert matcher.is_finished


@families
def test_an_answer_that_may_make_one_call_ends_after_it(family):
    """Marked calls end it with a text; of those that are the full answer the first is kept."""
    answer = format_of(ToolChoice(tools=TOOLS, is_single=True), family)
    text = BETWEEN[family].join([ONE_CALL[family]] * 2)
    for stop in answer.stops:
        text = text.partition(stop)[0]
    expected = text if family == "unknown" else ("add", '{"a": true}')
    assert calls_in(answer, text) == [expected]


def test_tools_that_the_template_does_not_read_are_refused(clients):
    with pytest.raises(openai.BadRequestError, match="small does not support tools") as e:
        ask(clients["unknown"])
    assert (e.value.code, e.value.param) == ("tools_not_supported", "tools")
    assert ask(clients["unknown"], tool_choice="none", max_tokens=1).usage.completion_tokens == 1


def test_a_request_with_tools_has_the_template_for_them(chat_engine, tmp_path):
    write_chat_tokenizer(tmp_path, TEMPLATE)
    (tmp_path / "additional_chat_templates").mkdir()
    told = TEMPLATE + "{# <tool_call> #}{{ tools[0].function.name }}"
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(told)
    tokenizer, length = tokenizer_in(tmp_path).build(), chat_engine.max_length
    served = ServedModel(name="s", engine=chat_engine, tokenizer=tokenizer, max_length=length)
    assert served.template_for(ToolChoice(tools=TOOLS)) == told
    assert served.template_for(ToolChoice()) == TEMPLATE
    plain, with_tools = (anyio.run(served.chat_prompt, TURNS, tools)[0] for tools in (None, TOOLS))
    assert with_tools == (*plain, *b"add")
