"""`/v1/responses`, by OpenAI's client and by itself."""

import json

import openai
import pydantic
import pytest
from chat_tokenizer import TEMPLATE
from scripted_model import scripted

from axcore.serving.api_error import ApiError
from axcore.serving.config import Limits
from axcore.serving.response_items import OutputWriter
from axcore.serving.responses_api import read_response

NAMES = "{% for tool in tools or () %}{{ tool.function.name }}{% endfor %}"
THINK = (
    TEMPLATE.replace("('user'", "('system', 'user'") + "{# <think> </think> <tool_call> #}" + NAMES
)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
ANSWER = f"<think>I add.</think>\n\nSo:{CALL}"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
ASKED = {"model": "small", "input": "What is 1 + 1?", "tools": [ADD]}


@pytest.fixture(scope="module")
def server(chat_engine, tmp_path_factory):
    with scripted(chat_engine, tmp_path_factory.mktemp("think"), THINK, ANSWER) as made:
        yield made


def items_of(response):
    return [one.model_dump(exclude={"id"}) for one in response.output]


def test_openai_gets_reasoning_text_and_calls_as_items(server):
    found = server.client().responses.create(**ASKED, instructions="Be brief.")
    assert (found.object, found.status, found.error, found.store) == (
        "response",
        "completed",
        None,
        False,
    )
    reasoning, message, call = found.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "I add.")
    assert (message.type, message.role, found.output_text) == ("message", "assistant", "\n\nSo:")
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "add",
        {"a": 1, "b": 2},
    )
    assert found.usage.output_tokens == len(ANSWER) + 1
    assert found.usage.output_tokens_details.reasoning_tokens == len("<think>I add.</think>")
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert (found.instructions, found.parallel_tool_calls) == ("Be brief.", True)


def test_openai_reads_a_stream_that_ends_with_the_same_response(server):
    client = server.client()
    whole = client.responses.create(**ASKED)
    with client.responses.stream(**ASKED) as stream:
        events = list(stream)
        last = stream.get_final_response()
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert [one["type"] for one in items_of(last)] == ["reasoning", "message", "function_call"]
    for mine, other in zip(last.output, whole.output, strict=True):
        ignored = {"id", "call_id", "parsed_arguments", "content"}
        assert mine.model_dump(exclude=ignored) == other.model_dump(exclude=ignored)
    assert last.output_text == whole.output_text
    assert last.usage == whole.usage


def test_events_come_in_the_official_order(server):
    events = list(server.client().responses.create(**ASKED, stream=True))
    kinds = [one.type.removeprefix("response.") for one in events]
    merged = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    content = ("content_part.added", "{0}.delta", "{0}.done", "content_part.done")
    assert merged == [
        *("created", "in_progress"),
        *("output_item.added", *(one.format("reasoning_text") for one in content)),
        *("output_item.done", "output_item.added"),
        *(one.format("output_text") for one in content),
        *("output_item.done", "output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert text == "\n\nSo:"


class Sum(pydantic.BaseModel):
    """What `parse` asks for."""

    is_right: bool


def test_openai_parses_a_response_of_a_schema(chat_server):
    client = chat_server.client()
    asked = {"model": "small", "input": "Is 1 + 1 = 2?", "temperature": 0}
    found = client.responses.parse(**asked, text_format=Sum)
    assert found.output_parsed.is_right in (True, False)
    cut = client.responses.create(**asked, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[0].status == "incomplete"
    *_, last = client.responses.create(**asked, max_output_tokens=3, stream=True)
    assert (last.type, last.response.output_text) == ("response.incomplete", cut.output_text)


def test_a_conversation_is_sent_in_full(server):
    client = server.client()
    first = client.responses.create(**ASKED)
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    turns = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is 1 + 1?"}]},
        *(one.model_dump(exclude_none=True) for one in first.output),
        result,
    ]
    chat = read_response({**ASKED, "input": turns}, Limits()).chat
    user, assistant, tool = chat.messages
    assert user == {"role": "user", "content": "What is 1 + 1?"}
    assert assistant["content"] == "\n\nSo:"
    assert assistant["reasoning_content"] == "I add."
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == call.call_id
    assert tool == {"role": "tool", "content": "3", "tool_call_id": call.call_id}


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "Nothing is kept"),
        ({"background": True}, "background", "is not supported"),
        ({"truncation": "auto"}, "truncation", "is not supported"),
        ({"include": ["file_search_call.results"]}, "include", "which is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "expected 'function'"),
        ({"input": None}, "input", "input is missing"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type", "not supported"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input", "is 'robot'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
            "'input_file', which is not supported",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "is missing"),
        ({"temperature": 1000}, "temperature", "temperature is 1000"),
        ({"n": 2}, "n", "There is no field 'n'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields, param, text):
    with pytest.raises(ApiError, match=text) as raised:
        read_response({"input": "a", **fields}, Limits())
    assert raised.value.param == param


def test_an_error_of_a_stream_is_an_event(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="There is no model 'large'"):
        client.responses.create(**{**ASKED, "model": "large"}, stream=True)
    body = {"input": "a", "stream": True}
    text = server.send("v1/responses", body).text
    assert text.startswith("event: response.created\ndata: {")
    assert "[DONE]" not in text


def test_an_answer_without_text_is_an_empty_message_and_space_before_a_call_is_none():
    writer = OutputWriter("a")
    events = [*writer.finish("completed")]
    assert [one["type"] for one in writer.items] == ["message"]
    assert events[-1]["item"]["content"][0]["text"] == ""
    writer = OutputWriter("a")
    assert [*writer.add("\n\n")] == []
    assert "".join(one.get("delta", "") for one in writer.add("b")) == "\n\nb"
