"""Bodies of requests: what is read, and what the error of each wrong one says."""

import pytest

from axcore.serving.api_error import ApiError
from axcore.serving.chat_api import read_chat
from axcore.serving.completions_api import read_completion
from axcore.serving.config import Limits
from axcore.serving.request_parser import RequestParser, say_ignored
from axcore.serving.request_settings import Seeds, read_settings

LIMITS = Limits()


def completion(**fields):
    return read_completion({"prompt": "a", **fields}, LIMITS)


def chat(**fields):
    return read_chat({"messages": [{"role": "user", "content": "a"}], **fields}, LIMITS)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        (
            {"temperatures": 1},
            "temperatures",
            "There is no field 'temperatures'; did you mean 'temp",
        ),
        ({"temperature": "hot"}, "temperature", "is a string; expected a number"),
        ({"temperature": -1}, "temperature", "temperature is -1; expected a number from 0"),
        ({"temperature": True}, "temperature", "temperature is true; expected a number"),
        ({"top_p": -0.1}, "top_p", "top_p is -0.1; expected a number from 0 to 1"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5; expected a whole number"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, which needs echo: true"),
        ({"n": 0}, "n", "n is 0; expected a number from 1 to 64"),
        ({"logprobs": 21}, "logprobs", "logprobs is 21; expected a number from 0 to 20"),
        ({"stop": [""]}, "stop", "stop has ''; expected texts of one letter or more"),
        ({"stop": ["a"] * 17}, "stop", "stop has 17 items; at most 16"),
        ({"stop": "a" * 1001}, "stop", "stop has a text of 1001 letters; at most 1000 are"),
        ({"suffix": "b"}, "suffix", "suffix is not supported. Models continue texts"),
        (
            {"prompt": ["a"] * 8, "best_of": 9},
            "best_of",
            "prompts and n or best_of make 72 completions; at most 64 are accepted",
        ),
        ({"best_of": 1, "n": 2}, "best_of", "best_of is 1, and n 2; expected n or more"),
        ({"best_of": 3, "stream": True}, "best_of", "only for requests without stream: true"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "has the key 'x'; expected the number of a token"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "101; expected a number from -100 to 100"),
        ({"stream_options": {}}, "stream_options", "only for requests with stream: true"),
        (
            {"stream": True, "stream_options": {"include_usages": True}},
            "stream_options.include_usages",
            "There is no field 'stream_options.include_usages'; did you mean 'include_usage'",
        ),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": []}, "prompt", "a text, a list of texts, a list of token numbers"),
        ({"prompt": ["a", 1]}, "prompt[1]", "prompt[1] is 1; expected a text or a list"),
        ({"prompt": ["a"] * 65}, "prompt", "prompt has 65 texts; at most 64"),
        (
            {"prompt": "\ud800"},
            "prompt",
            "prompt is not valid Unicode text: there is half of a surr",
        ),
        ({"seed": 2**64}, "seed", "expected a number from -"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named_with_what_is_expected(fields, param, text):
    with pytest.raises(ApiError) as raised:
        completion(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert text in raised.value.message


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"messages": []}, "messages", "messages is missing or empty"),
        ({"messages": ["a"]}, "messages[0]", "messages[0] is a string; expected an object"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "role is missing"),
        (
            {"messages": [{"role": "robot", "content": "a"}]},
            "messages[0].role",
            "is 'robot'; expected 'system' or 'developer' or 'user'",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "content is missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "messages[0].content[0].type",
            "is 'video'; the model reads 'text' only",
        ),
        ({"functions": []}, "functions", "functions is not supported. Use tools."),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs: true"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name", "is missing"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools, and there are none"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "is not an object"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "add_generation_prompt asks for another one",
        ),
    ],
)
def test_a_wrong_field_of_a_chat_is_named_with_what_is_expected(fields, param, text):
    with pytest.raises(ApiError) as raised:
        chat(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert text in raised.value.message


def test_a_field_that_is_null_is_one_that_was_left_out():
    names = ("max_tokens", "temperature", "top_p", "n", "stop", "seed", "suffix", "logit_bias")
    assert completion(**dict.fromkeys(names)) == completion()


def test_fields_that_nobody_knows_may_be_null():
    assert completion(enable_cheese=None) == completion()
    assert (
        chat(enable_cheese=None, messages=[{"role": "user", "content": "a", "b": None}]) == chat()
    )


def test_a_top_p_of_0_leaves_the_likeliest_token():
    assert completion(top_p=0).settings.sampling.top_p == 1e-6


def test_what_clients_write_beside_a_conversation_is_ignored_and_named_once(caplog):
    beside = {"id": "1", "timestamp": 3, "cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    said = {"role": "assistant", "content": [part], "reasoning": "so", **beside}
    tool = {"type": "function", "function": {"name": "add"}}
    say_ignored.cache_clear()
    for _ in range(2):
        asked = chat(
            messages=[said, said], tools=[{**tool, "cache_control": {}}], metadata={"a": "b"}
        )
        message = {"role": "assistant", "content": "a", "reasoning_content": "so"}
        assert asked.messages == (message, message)
        assert asked.tool_choice.tools == [tool]
    named = [line.split()[2] for line in caplog.messages]
    beside_all = [f"messages[].{name}" for name in beside]
    assert sorted(named) == sorted(
        ["metadata", "messages[].content[].cache_control", "tools[].cache_control", *beside_all]
    )


def test_settings_reach_the_sampling():
    fields = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
    }
    for asked in (completion(**fields), chat(**fields)):
        sampling = asked.settings.sampling
        assert {name: getattr(sampling, name) for name in fields} == fields
    assert completion(logit_bias={"5": -3}).settings.sampling.logit_bias == ((5, -3.0),)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("ab", ("ab",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_a_prompt_is_a_text_or_tokens_or_several_of_them(prompt, read):
    assert completion(prompt=prompt).prompts == read


def test_what_a_client_sends_back_of_an_answer_is_read_again():
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a": 1}'},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "3"}]}
    first = {"role": "developer", "content": "Be brief."}
    system, sent, returned = chat(messages=[first, answer, result]).messages
    assert system == {"role": "system", "content": "Be brief."}
    assert sent["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert sent["content"] == ""
    assert returned == {"role": "tool", "tool_call_id": "call_1", "content": "3"}


@pytest.mark.parametrize("content", [None, "", [{"type": "refusal", "refusal": "No."}]])
def test_a_turn_that_refused_has_its_refusal_as_its_text(content):
    turn = {"role": "assistant", "content": content, "refusal": None if content else "No."}
    _, answer = chat(messages=[{"role": "user", "content": "Do it."}, turn]).messages
    assert answer == {"role": "assistant", "content": "No."}


def test_only_an_answer_refuses_and_says_nothing_else():
    for role, code in (("user", "unsupported_field"), ("assistant", "invalid_value")):
        with pytest.raises(ApiError, match="refusal") as caught:
            chat(messages=[{"role": role, "content": "Yes.", "refusal": "No."}])
        assert caught.value.content["error"]["code"] == code


def test_tools_are_left_out_where_the_request_wants_none():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert chat(tools=tools).tool_choice.tools == tools
    assert chat(tools=tools, tool_choice="none").tool_choice.tools is None
    assert chat(tool_choice="auto").tool_choice == chat().tool_choice


def settings(**body):
    return read_settings(RequestParser(body), Limits())


def test_requests_without_a_seed_draw_differently_and_alike_after_each_start():
    one, other = Seeds(7), Seeds(7)
    drawn = [tuple(one.of(settings(n=2))) for _ in range(20)]
    assert drawn == [tuple(other.of(settings(n=2))) for _ in range(20)]
    assert len({seed for pair in drawn for seed in pair}) == 40
    assert drawn[:3] != [tuple(Seeds(8).of(settings(n=2))) for _ in range(3)]


def test_a_request_with_a_seed_takes_none_of_the_servers():
    one, other = Seeds(7), Seeds(7)
    assert one.of(settings(seed=5, n=3))[:1] == one.of(settings(seed=5)) == [5]
    assert one.of(settings()) == other.of(settings())


def test_a_server_without_a_seed_draws_differently_each_time_it_starts():
    first, second = Seeds(None), Seeds(None)
    assert [first.of(settings()) for _ in range(4)] != [second.of(settings()) for _ in range(4)]
