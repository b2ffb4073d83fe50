"""Reasoning and calls of a family's model, as responses and streams have them."""

import contextlib
import json

import pytest
import tokenizers
from chat_tokenizer import SPECIAL, TEMPLATE
from scripted_model import scripted

from axcore.serving import ParserNames

NAMES = "{% for tool in tools or () %}{{ tool.function.name }}{% endfor %}"
THINK = TEMPLATE + "{# <think> </think> <tool_call> #}" + NAMES
OPENED = TEMPLATE.replace("assistant:{% endif", "assistant:<think>\n{% endif") + "{# </think> #}"
HARMONY = TEMPLATE + "{# <|channel|> analysis functions. #}" + NAMES
CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>")
ANSWER = "<think>\nOne and one.\n</think>\n\nIt is 2."
CALLED = (
    "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant to=functions.add<|channel|>"
    'commentary json<|message|>{"a": 1, "b": 2}<|call|>'
)
TURNS = [{"role": "user", "content": "What is 1 + 1? Use <think>."}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


@pytest.fixture
def served_by(chat_engine, tmp_path):
    """Returns a client of a model that answers what a test says."""
    with contextlib.ExitStack() as stack:

        def make(template, text, **how):
            server = scripted(chat_engine, tmp_path, template, text, **how)
            return stack.enter_context(server).client()

        yield make


def ask(client, **fields):
    return client.chat.completions.create(model="small", messages=TURNS, **fields)


def streamed(client, **fields):
    """Returns what all deltas of a stream add up to, and its last usage."""
    options = {"include_usage": True}
    content, reasoning, calls, reasons, usage = "", "", {}, [], None
    for piece in ask(client, stream=True, stream_options=options, **fields):
        usage = piece.usage or usage
        for choice in piece.choices:
            delta = choice.delta.model_dump()
            content += delta["content"] or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            reasoning += delta.get("reasoning") or ""
            for call in delta["tool_calls"] or ():
                name, arguments = calls.get(call["index"], (call["function"]["name"], ""))
                calls[call["index"]] = name, arguments + call["function"]["arguments"]
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return content, reasoning, calls, reasons, usage


@pytest.mark.parametrize("size", [1, 7])
def test_reasoning_is_apart_in_a_response_and_in_a_stream(served_by, size):
    client = served_by(THINK, ANSWER, size=size)
    whole = ask(client)
    message = whole.choices[0].message
    assert message.content == "\n\nIt is 2."
    assert message.reasoning_content == message.reasoning == "\nOne and one.\n"
    content, reasoning, _, reasons, usage = streamed(client)
    assert (content, reasoning, reasons) == (message.content, message.reasoning, ["stop"])
    for one in (whole.usage, usage):
        num_letters = len(ANSWER) - len(message.content)
        assert one.completion_tokens_details.reasoning_tokens == num_letters
        assert one.completion_tokens == len(ANSWER) + 1


def test_reasoning_that_the_prompt_has_begun_is_apart(served_by):
    client = served_by(OPENED, ANSWER.removeprefix("<think>\n"))
    message = ask(client).choices[0].message
    assert (message.reasoning, message.content) == ("One and one.\n", "\n\nIt is 2.")


def test_a_message_that_is_continued_may_have_begun_its_reasoning(served_by):
    client = served_by(THINK, "it is.</think>2")
    turns = [*TURNS, {"role": "assistant", "content": "<think>So "}]
    found = client.chat.completions.create(
        model="small", messages=turns, extra_body={"continue_final_message": True}
    )
    message = found.choices[0].message
    assert (message.reasoning, message.content) == ("it is.", "2")


@pytest.mark.parametrize(
    ("fields", "parsers", "content"),
    [
        ({"separate_reasoning": False}, ParserNames(), ANSWER),
        ({"include_reasoning": False}, ParserNames(), "\n\nIt is 2."),
        ({}, ParserNames(reasoning="none"), ANSWER),
    ],
)
def test_reasoning_stays_or_is_left_out_where_somebody_says_so(served_by, fields, parsers, content):
    client = served_by(THINK, ANSWER, parsers=parsers)
    message = ask(client, extra_body=fields).choices[0].message
    assert message.content == content
    assert not hasattr(message, "reasoning")
    assert streamed(client, extra_body=fields)[:2] == (content, "")


def test_a_parser_is_chosen_by_name_whatever_the_template(served_by):
    added = [tokenizers.AddedToken(mark, special=True) for mark in ("[THINK]", "[/THINK]")]
    parsers = ParserNames(reasoning="mistral", tools="none")
    client = served_by(TEMPLATE, "[THINK]a[/THINK]b", parsers=parsers, added=added)
    message = ask(client).choices[0].message
    assert (message.reasoning, message.content) == ("a", "b")


def test_channels_of_special_tokens_become_reasoning_and_calls(served_by):
    client = served_by(HARMONY, CALLED, special=(*SPECIAL, *CHANNELS))
    found = ask(client, tools=TOOLS)
    choice = found.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.reasoning == "I add."
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
    content, reasoning, calls, reasons, _ = streamed(client, tools=TOOLS)
    assert (content, reasoning, reasons) == ("", "I add.", ["tool_calls"])
    assert calls == {0: ("add", call.function.arguments)}


def test_a_call_that_is_cut_off_is_text_of_a_response_and_no_json_of_a_stream(served_by):
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2'
    client = served_by(THINK, text, has_end=False)
    choice = ask(client, tools=TOOLS).choices[0]
    assert (choice.message.content, choice.finish_reason) == (text, "length")
    assert choice.message.tool_calls is None
    content, _, calls, reasons, _ = streamed(client, tools=TOOLS)
    assert (content, calls, reasons) == (', "b": [2', {0: ("add", '{"a": 1')}, ["length"])


def test_one_call_is_kept_where_parallel_ones_are_not_wanted(served_by):
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    client = served_by(THINK, text * 2)
    for is_parallel, number in ((True, 2), (False, 1)):
        message = ask(client, tools=TOOLS, parallel_tool_calls=is_parallel).choices[0].message
        assert len(message.tool_calls) == number
    assert ask(client).choices[0].message.content == text * 2
