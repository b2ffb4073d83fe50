"""What `/metrics` counts, and that nobody can make it grow."""

import re

import pytest
from model_server import serving

from axcore.serving import ApiKeys

KEY = "key-of-somebody"


@pytest.fixture
def counted(engine):
    """A server with metrics of its own, and what reads one of them."""
    with serving(engine, keys=ApiKeys((KEY,))) as server:

        def ask(path, body=None):
            return server.send(path, body, authorization=f"Bearer {KEY}")

        def figure(name):
            lines = ask("metrics").text.splitlines()
            return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

        yield server, ask, figure


def test_paths_that_there_are_not_are_counted_as_one(counted):
    """Whoever has no key could make the server keep a series for each path they think of."""
    server, ask, _ = counted
    for letter in "abcdef":
        assert server.send(f"v1/{letter}").status == 401
        assert server.send(f"v1/{letter}", {}).status == 401
        assert ask(f"v1/models/{letter}").status == 404
    assert server.send("v1/models").status == 401
    assert ask("v1/models", {}).status == 405
    found = re.findall(r'requests_total{path="(.*?)",status="(\d+)"} (\S+)', ask("metrics").text)
    assert sorted(found) == [
        ("/v1/models", "401", "1.0"),
        ("/v1/models", "405", "1.0"),
        ("/v1/models/{name}", "404", "6.0"),
        ("other", "401", "12.0"),
    ]


def test_a_request_that_only_looks_at_its_prompt_is_timed_and_draws_no_token(counted):
    _, ask, figure = counted
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}
    reply = ask("v1/completions", body)
    assert reply.json["usage"]["completion_tokens"] == 0
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert figure("axcore_prompt_tokens_total") == reply.json["usage"]["prompt_tokens"] == 4
    assert figure("axcore_completion_tokens_total") == 0
    assert figure("axcore_request_seconds_count") == 1
    assert figure("axcore_time_to_first_token_seconds_count") == 0
