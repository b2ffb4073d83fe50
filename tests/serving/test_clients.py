"""Clients that others wrote: the `openai` package and `curl`."""

import json
import shutil
import subprocess
from typing import Literal

import openai
import pydantic
import pytest
from model_server import serving

from axcore.serving import ApiKeys
from axcore.serving.request_parser import say_ignored

KEY = "key-of-somebody"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
TURNS = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(chat_engine):
    with serving(chat_engine, keys=ApiKeys((KEY,))) as server:
        yield client_of(server)


def client_of(server, key=KEY):
    return server.client(key)


@pytest.mark.slow
def test_openai_lists_the_model(client):
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "axcore"


def test_openai_completes_whole_and_streamed(client):
    asked = {"model": "small", "prompt": "ab", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked, logprobs=2)
    assert whole.usage.completion_tokens == len(whole.choices[0].logprobs.tokens) == 12
    assert len(whole.choices[0].logprobs.top_logprobs[0]) == 2
    pieces = list(client.completions.create(**asked, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert whole._request_id.startswith("req-")


def test_openai_chats_whole_and_streamed(client):
    asked = {"model": "small", "messages": TURNS, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens
    assert all(len(one.top_logprobs) == 3 for one in content)
    assert content[0].logprob == max(one.logprob for one in content[0].top_logprobs)
    options = {"include_usage": True}
    pieces = list(client.chat.completions.create(**asked, stream=True, stream_options=options))
    texts = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.choices[0].finish_reason in ("stop", "length")


class CompletionStream(pydantic.BaseModel):
    """What `parse` asks for."""

    is_right: bool
    kind: Literal["sum", "product"]


def test_openai_parses_what_a_greedy_model_writes_that_likes_white_space_best(client, chat_engine):
    spaces = {str(int(chat_engine.tokenizer.encode(one)[0])): 100 for one in " \n\t"}
    asked = {"model": "small", "messages": TURNS, "max_tokens": 60, "temperature": 0}
    parse = client.chat.completions.parse
    found = (
        parse(**asked, response_format=CompletionStream, logit_bias=spaces)
        .choices[0]
        .message.parsed
    )
    assert found.kind in ("sum", "product")


def test_a_conversation_can_be_continued_with_what_was_answered(client):
    asked = {"model": "small", "max_tokens": 5, "temperature": 0}
    first = client.chat.completions.create(messages=TURNS, **asked).choices[0].message
    turns = [*TURNS, first.model_dump(), {"role": "user", "content": "More"}]
    assert client.chat.completions.create(messages=turns, **asked).usage.prompt_tokens > 20


def test_the_last_message_can_be_continued(client):
    asked = {"model": "small", "max_tokens": 1}
    plain = client.chat.completions.create(messages=TURNS, **asked).usage.prompt_tokens
    turns = [*TURNS, {"role": "assistant", "content": "So "}]
    more = {"continue_final_message": True}
    found = client.chat.completions.create(messages=turns, extra_body=more, **asked)
    assert found.usage.prompt_tokens == plain + len("So ")


def test_openai_passes_tools_to_the_template(client):
    asked = {"model": "small", "messages": TURNS, "max_tokens": 1}
    plain = client.chat.completions.create(**asked).usage.prompt_tokens
    with_tools = client.chat.completions.create(**asked, tools=TOOLS).usage.prompt_tokens
    assert with_tools - plain == len(json.dumps(TOOLS[0]["function"], separators=(", ", ": ")))
    none = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="none")
    assert none.usage.prompt_tokens == plain


def test_what_a_template_may_read_reaches_it_and_is_ignored_by_others(client, caplog):
    say_ignored.cache_clear()
    asked = {"model": "small", "messages": TURNS, "max_tokens": 1}
    plain = client.chat.completions.create(**asked).usage.prompt_tokens
    low = client.chat.completions.create(**asked, reasoning_effort="low", verbosity="low")
    assert low.usage.prompt_tokens - plain == len("low")
    assert ["verbosity" in line for line in caplog.messages if "ignored" in line] == [True]


def test_openai_raises_what_the_server_says(client, chat_server):
    with pytest.raises(openai.BadRequestError, match="temperature is 1000") as raised:
        client.completions.create(model="small", prompt="a", temperature=1000)
    assert (raised.value.param, raised.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError, match="does not take this conversation"):
        client.chat.completions.create(model="small", messages=[{"role": "tool", "content": "a"}])
    with pytest.raises(openai.NotFoundError, match="There is no model 'large'"):
        client.completions.create(model="large", prompt="a")
    wrong = client.with_options(api_key="another-key")
    with pytest.raises(openai.AuthenticationError, match="not one of this server's"):
        wrong.models.list()
    chat_server.served.num_active_requests, most = 256, chat_server.served.num_active_requests
    with pytest.raises(openai.RateLimitError, match="as many as it may"):
        client_of(chat_server).completions.create(model="small", prompt="a")
    chat_server.served.num_active_requests = most
    chat_server.served.is_draining = True
    with pytest.raises(openai.InternalServerError, match="about to end"):
        client_of(chat_server).completions.create(model="small", prompt="a")
    chat_server.served.is_draining = False


def curl(*words):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return subprocess.run(["curl", "-s", *words], capture_output=True, text=True, check=True).stdout


def test_curl_completes_and_streams(server):
    body = json.dumps({"prompt": "ab", "max_tokens": 8, "temperature": 0})
    words = ["-H", "content-type: application/json", f"{server.url}v1/completions", "-d"]
    text = json.loads(curl(*words, body))["choices"][0]["text"]
    assert text == server.complete("ab", max_tokens=8)["text"]
    streamed = curl("-N", *words, body.replace("{", '{"stream": true, ', 1))
    assert streamed.endswith("data: [DONE]\n\n")


def test_curl_learns_which_header_is_missing(server):
    reply = json.loads(curl(f"{server.url}v1/completions", "-d", "{}"))
    assert "With curl, add -H 'content-type: application/json'." in reply["error"]["message"]
