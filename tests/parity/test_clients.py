"""Clients that are libraries of their own: LangChain, LiteLLM, and editors that complete code."""

import json
from typing import Literal

import pydantic
import pytest
from chat_tokenizer import write_chat_tokenizer
from model_server import chat_tokenizer, embeddings_of, serving, small_engine

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TURNS = [{"role": "user", "content": "Hello"}]
KNOBS = {"temperature": 0, "max_tokens": 8}


class Calculation(pydantic.BaseModel):
    """An answer of known fields."""

    kind: Literal["sum", "product"]
    is_exact: bool


class Weather(pydantic.BaseModel):
    """Return the weather of a city."""

    unit: Literal["celsius", "fahrenheit"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_chat_tokenizer(tmp_path_factory.mktemp("clients"))
    with (
        small_engine(chat_tokenizer(folder)) as engine,
        serving(engine, endpoints=(embeddings_of(engine),)) as made,
    ):
        yield made


@pytest.fixture
def whole(server):
    """What a plain request is answered."""
    body = {"model": "small", "messages": TURNS, **KNOBS}
    return server.send("v1/chat/completions", body).json


@pytest.fixture
def langchain(server):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="small", base_url=f"{server.url}v1", api_key="none", **KNOBS)


def test_langchain_chats_whole_and_streamed(langchain, whole):
    text = whole["choices"][0]["message"]["content"]
    found = langchain.invoke("Hello")
    assert found.content == text
    assert found.usage_metadata["output_tokens"] == whole["usage"]["completion_tokens"]
    pieces = list(langchain.stream("Hello"))
    assert "".join(piece.content for piece in pieces) == text
    assert len(pieces) > 1


def test_langchain_reads_structured_answers_and_calls_of_tools(langchain):
    structured = langchain.with_structured_output(Calculation, method="json_schema")
    assert structured.invoke("1 + 1", max_tokens=60).kind in ("sum", "product")
    forced = langchain.bind_tools([Weather], tool_choice="Weather")
    (call,) = forced.invoke("How warm is it?", max_tokens=60).tool_calls
    assert call["name"] == "Weather"
    assert call["args"]["unit"] in ("celsius", "fahrenheit")
    pieces = list(forced.stream("How warm is it?", max_tokens=60))
    streamed = pieces[0]
    for piece in pieces[1:]:
        streamed += piece
    assert streamed.tool_calls[0]["args"] == call["args"]


def test_langchain_makes_vectors(server):
    from langchain_openai import OpenAIEmbeddings

    # By default it sends numbers of another model's tokens.
    embeddings = OpenAIEmbeddings(
        model="small", base_url=f"{server.url}v1", api_key="none", check_embedding_ctx_length=False
    )
    first, again, other = embeddings.embed_documents(["a text", "a text", "b"])
    assert first == pytest.approx(again)
    assert first != pytest.approx(other)


@pytest.fixture
def litellm(server, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # asks no other server
    import litellm

    where = {"api_base": f"{server.url}v1", "api_key": "none"}
    return litellm, {"model": "openai/small", **where}


def test_litellm_chats_whole_and_streamed(litellm, whole):
    library, asked = litellm
    text = whole["choices"][0]["message"]["content"]
    found = library.completion(**asked, messages=TURNS, **KNOBS)
    assert found.choices[0].message.content == text
    assert found.usage.total_tokens == whole["usage"]["total_tokens"]
    pieces = library.completion(
        **asked, messages=TURNS, **KNOBS, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


def test_litellm_knows_a_context_that_is_too_short_and_reads_structured_answers(litellm):
    library, asked = litellm
    with pytest.raises(library.ContextWindowExceededError):
        library.completion(**asked, messages=[{"role": "user", "content": "a" * 400}])
    found = library.completion(
        **asked, messages=TURNS, temperature=0, max_tokens=60, response_format=Calculation
    )
    assert Calculation.model_validate_json(found.choices[0].message.content)


def test_litellm_completes_texts_and_makes_vectors(litellm, server):
    library, asked = litellm
    completed = {**asked, "model": "text-completion-openai/small"}
    found = library.text_completion(**completed, prompt="ab", **KNOBS)
    assert found.choices[0].text == server.complete("ab", model="small", max_tokens=8)["text"]
    made = library.embedding(**asked, input=["a text"], encoding_format="float")
    assert len(made.data[0]["embedding"]) == 16


def test_an_editor_completes_code_as_it_is_typed(server):
    """Streams raw completions with stops, as editors do, and leaves one in the middle."""
    import httpx

    body = {
        "model": "small",
        "prompt": "<fim_prefix>def add(a, b):\n    <fim_suffix>\n\n<fim_middle>",
        "stream": True,
        "max_tokens": 12,
        "temperature": 0.01,
        "stop": ["<fim_prefix>", "<fim_suffix>", "<file_sep>", "<|endoftext|>", "\n\n"],
    }
    with httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "v1/completions", json=body) as reply:
            lines = [line for line in reply.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")
        with client.stream("POST", "v1/completions", json=body) as reply:
            next(reply.iter_lines())  # the user typed on
        again = client.post("v1/completions", json={**body, "stream": False}).json()
    assert again["choices"][0]["text"] == "".join(one["choices"][0]["text"] for one in events)
