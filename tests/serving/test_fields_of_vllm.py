"""Fields of requests and options of the server that clients of vLLM know."""

import json

import pytest
from model_server import SameSeed, serving_model

from axcore import __version__
from axcore.errors import ConfigError
from axcore.inference.grammar import json_schema, lark, regex
from axcore.serving import ServedModel, read_generation_config, serving_app
from axcore.serving.api_error import ApiError
from axcore.serving.chat_api import read_chat
from axcore.serving.completions_api import read_completion
from axcore.serving.config import Limits

TURNS = [{"role": "user", "content": "Hello"}]
ASKED = {"model": "small", "max_tokens": 8, "temperature": 0}


def chat(server, **fields):
    reply = server.send("v1/chat/completions", {"messages": TURNS, **ASKED, **fields})
    assert reply.status == 200, reply.text
    return reply.json


def events(reply):
    lines = [one.removeprefix("data: ") for one in reply.text.split("\n\n")]
    return [json.loads(one) for one in lines if one.startswith("{")]


def read(**fields):
    return read_completion({"prompt": "a", **fields}, Limits())


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"guided_json": {"type": "integer"}}, json_schema({"type": "integer"})),
        ({"guided_json": '{"type": "integer"}'}, json_schema('{"type": "integer"}')),
        ({"guided_regex": "a+"}, regex("a+")),
        ({"guided_choice": ["a", 'b"c']}, lark('start: "a" | "b\\"c"')),
        ({"guided_grammar": 'start: "a"'}, lark('start: "a"')),
        ({"structured_outputs": {"regex": "a+"}}, regex("a+")),
        ({"structured_outputs": {"json_object": True}}, json_schema({"type": "object"})),
        ({"structured_outputs": {"json_object": False}}, None),
    ],
)
def test_structured_outputs_have_vllms_names(fields, grammar):
    assert read(**fields).grammar == grammar
    assert read_chat({"messages": TURNS, **fields}, Limits()).grammar == grammar


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"guided_choice": []}, "guided_choice", "expected a list of 1 to 1000 texts"),
        ({"guided_choice": [1]}, "guided_choice", "expected a list of 1 to 1000 texts"),
        ({"guided_regex": ""}, "guided_regex", "expected a text"),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json", "a JSON schema"),
        ({"structured_outputs": {"tag": 1}}, "structured_outputs.tag", "There is no field"),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
            "structured_outputs.regex",
            "guided_regex and structured_outputs.regex ask for two formats",
        ),
        ({"stop_token_ids": [True]}, "stop_token_ids", "has True; expected numbers of tokens"),
        ({"min_tokens": -1}, "min_tokens", "min_tokens is -1"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "expected a number from 0 to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "without stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "is 0; expected -1, or a"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields, param, text):
    with pytest.raises(ApiError, match=text) as raised:
        read(**fields)
    assert raised.value.param == param


def test_a_choice_is_one_of_those_that_are_given(server):
    found = server.complete("ab", max_tokens=20, guided_choice=["yes, so", "no"])
    assert found["text"] in ("yes, so", "no")


def test_ends_of_answers_are_those_that_are_asked_for(server):
    plain = server.complete("ab", max_tokens=12)["text"]
    stop = plain[4]
    first = plain.index(stop)
    fields = {"max_tokens": 12, "stop_token_ids": [ord(stop)]}
    assert server.complete("ab", **fields)["text"] == plain[:first]
    shown = server.complete("ab", **fields, include_stop_str_in_output=True)
    assert (shown["text"], shown["finish_reason"]) == (plain[: first + 1], "stop")
    late = server.complete("ab", max_tokens=12, stop=stop, min_tokens=12)["text"]
    assert late == plain
    reply = server.send("v1/completions", {"prompt": "a", "stop_token_ids": [10**6]})
    assert (reply.status, reply.json["error"]["param"]) == (400, "stop_token_ids")
    reply = server.send("v1/completions", {"prompt": "a", "max_tokens": 2, "min_tokens": 3})
    assert (reply.status, reply.json["error"]["param"]) == (400, "min_tokens")


def test_special_tokens_are_written_where_they_are_wanted(chat_server):
    turn = chat_server.served.tokenizer.added_token("<|turn|>")
    fields = {"logit_bias": {str(turn): 100}, "max_tokens": 2}
    assert chat(chat_server, **fields)["choices"][0]["message"]["content"] == ""
    shown = chat(chat_server, **fields, skip_special_tokens=False)
    assert shown["choices"][0]["message"]["content"] == "<|turn|><|turn|>"


def test_log_probabilities_of_a_prompt_are_those_of_an_echo(server, chat_server):
    echo = server.complete("abc", echo=True, logprobs=2, max_tokens=1)["logprobs"]
    found = server.complete("abc", prompt_logprobs=2, max_tokens=1)
    assert found["logprobs"] is None
    places, ids = found["prompt_logprobs"], [256, *b"abc"]
    assert places[0] is None
    for place, token, logprob in zip(places[1:], ids[1:], echo["token_logprobs"][1:4], strict=True):
        own = place[str(token)]
        assert (own["logprob"], own["decoded_token"]) == (
            pytest.approx(logprob, abs=1e-5),
            chr(token),
        )
        assert {1, 2} <= {one["rank"] for one in place.values()} <= {1, 2, None}
        assert len(place) in (2, 3)
    both = server.complete("abc", prompt_logprobs=3, logprobs=1, max_tokens=1)
    assert len(both["logprobs"]["top_logprobs"][0]) == 1
    assert len(server.complete("a", prompt_logprobs=0, max_tokens=1)["prompt_logprobs"]) == 2
    answer = chat(chat_server, prompt_logprobs=1, return_token_ids=True)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])


def test_numbers_of_tokens_are_sent_where_they_are_wanted(server, chat_server):
    found = server.complete("ab", max_tokens=8, return_token_ids=True, logprobs=0)
    assert found["prompt_token_ids"] == [256, *b"ab"]
    assert len(found["token_ids"]) == len(found["logprobs"]["tokens"])
    body = {"prompt": "ab", **ASKED, "return_token_ids": True, "stream": True}
    pieces = [one["choices"][0] for one in events(server.send("v1/completions", body))]
    assert [token for one in pieces for token in one["token_ids"]] == found["token_ids"]
    assert ["prompt_token_ids" in one for one in pieces] == [True] + [False] * (len(pieces) - 1)
    whole = chat(chat_server, return_token_ids=True)
    body = {"messages": TURNS, **ASKED, "return_token_ids": True, "stream": True}
    sent = events(chat_server.send("v1/chat/completions", body))
    tokens = [token for one in sent for token in one["choices"][0].get("token_ids", ())]
    assert tokens == whole["choices"][0]["token_ids"]
    assert sent[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert "token_ids" not in chat(chat_server)["choices"][0]


def test_the_last_tokens_of_a_prompt_are_kept(server, chat_server):
    for number, text in ((3, "xyz"), (-1, "a" * 300)):
        found = server.complete(
            "abc" + text, truncate_prompt_tokens=number, return_token_ids=True, max_tokens=8
        )
        kept = found["prompt_token_ids"]
        assert kept == [*text.encode()][-len(kept) :]
        assert len(kept) == (3 if number == 3 else server.served.max_length - 8)
    assert chat(chat_server, truncate_prompt_tokens=4)["usage"]["prompt_tokens"] == 4


def test_a_model_has_several_names(engine):
    served = ServedModel(
        name="small",
        aliases=("gpt-4o",),
        engine=engine,
        tokenizer=engine.tokenizer,
        max_length=engine.max_length,
        seeds=SameSeed(),
        defaults={"temperature": 0, "top_p": 0.5},
    )
    with serving_model(served) as server:
        assert [one["id"] for one in server.send("v1/models").json["data"]] == ["small", "gpt-4o"]
        bodies = [{"prompt": "ab", "model": name, "max_tokens": 8} for name in served.model_names]
        found = [server.send("v1/completions", body).json for body in bodies]
        assert found[0]["choices"] == found[1]["choices"]
        assert found[1]["model"] == "gpt-4o"
        # By the default of the server, which makes answers the likeliest ones.
        assert found[0]["choices"][0]["text"] == server.complete("ab", max_tokens=8)["text"]


def test_defaults_are_those_that_a_model_recommends(tmp_path):
    path = tmp_path / "generation_config.json"
    content = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": 3}
    path.write_text(json.dumps(content))
    expected = {"temperature": 0.6, "top_k": 20}
    assert read_generation_config("auto", tmp_path) == expected
    assert read_generation_config(str(path), "elsewhere") == expected
    assert read_generation_config(None, tmp_path) == {}
    path.write_text('{"do_sample": false}')
    assert read_generation_config("auto", tmp_path) == {"temperature": 0}
    path.write_text('{"temperature": "hot"}')
    with pytest.raises(ConfigError, match="temperature is a string"):
        read_generation_config("auto", tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        read_generation_config("auto", tmp_path / "other")


def test_the_version_is_that_of_axcore(server):
    assert server.send("version").json == {"version": __version__}


def test_pages_of_other_sites_may_ask_where_they_are_named(server):
    from starlette.testclient import TestClient

    site = {"origin": "https://example.com"}
    asks = {**site, "access-control-request-method": "POST"}
    named = TestClient(serving_app(server.served, cors_origins=["https://example.com"]))
    allowed = named.options("/v1/completions", headers=asks)
    assert allowed.headers["access-control-allow-origin"] == "https://example.com"
    for path in ("/v1/models", "/nothing"):
        found = named.get(path, headers=site).headers
        assert found["access-control-allow-origin"] == "https://example.com"
    other = named.get("/v1/models", headers={"origin": "https://other.com"})
    assert "access-control-allow-origin" not in other.headers
    closed = TestClient(serving_app(server.served)).get("/v1/models", headers=site)
    assert "access-control-allow-origin" not in closed.headers


@pytest.mark.slow
def test_the_best_of_several_answers_are_those_with_the_likeliest_tokens(server):
    asked = {"prompt": ["ab", "c"], "max_tokens": 6, "seed": 5, "temperature": 2, "model": "small"}
    listed = server.send("v1/completions", {**asked, "n": 4, "logprobs": 0}).json["choices"]
    logprobs = [one["logprobs"]["token_logprobs"] for one in listed]
    means = [sum(one) / len(one) for one in logprobs]
    expected = []
    for first in (0, 4):
        numbers = sorted(range(first, first + 4), key=lambda number: -means[number])
        expected += [listed[number]["text"] for number in numbers[:2]]
    found = server.send("v1/completions", {**asked, "n": 2, "best_of": 4}).json
    assert [one["text"] for one in found["choices"]] == expected
    assert [one["index"] for one in found["choices"]] == [0, 1, 2, 3]
    assert all(one["logprobs"] is None for one in found["choices"])
    assert found["usage"]["completion_tokens"] == sum(map(len, logprobs))
