"""A server that is asked for more than it can do, or that ends: who is refused, who is answered."""

import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from held_engines import busy
from model_server import SMALL, byte_tokenizer, serving, small_engine

from axcore.serving import ServedModel

LONG = {"prompt": "ab", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
TOKENS = {"tokenize": {"prompt": "ab"}, "detokenize": {"tokens": [97]}}


@pytest.fixture(scope="module")
def narrow():
    """An engine in whose queue two requests can wait."""
    with small_engine(byte_tokenizer(), attrs.evolve(SMALL, max_queue=2)) as made:
        yield made


def test_a_full_queue_refuses_with_the_time_to_ask_again_and_keeps_those_that_wait(narrow):
    with serving(narrow, retry_after_s=3) as server, ThreadPoolExecutor() as pool:
        with busy(narrow):
            waiting = [pool.submit(server.send, "v1/completions", LONG) for _ in range(2)]
            _wait_until(lambda: narrow.stats().num_waiting == 2)
            for asked in (LONG, {**LONG, "stream": True}):
                reply = server.send("v1/completions", asked)
                assert (reply.status, reply.headers["retry-after"]) == (429, "3")
                assert reply.json["error"]["code"] == "queue_full"
                assert reply.json["error"]["message"] == "2 requests wait already."
        assert [one.result(60).status for one in waiting] == [200, 200]
        assert server.send("v1/completions", LONG).status == 200


def test_a_request_of_which_a_part_does_not_fit_leaves_nothing_in_the_queue(narrow):
    with serving(narrow) as server:
        with busy(narrow):
            assert server.send("v1/completions", {**LONG, "n": 3}).status == 429
        _wait_until(lambda: narrow.stats().num_waiting == 0)
        assert server.send("v1/completions", {**LONG, "n": 2}).status == 200
        _wait_until(lambda: narrow.stats().num_waiting + narrow.stats().num_running == 0)


def test_openais_client_asks_again_when_it_may(narrow):
    with serving(narrow) as server, ThreadPoolExecutor() as pool, contextlib.ExitStack() as held:
        held.enter_context(busy(narrow))
        waiting = [pool.submit(server.send, "v1/completions", LONG) for _ in range(2)]
        _wait_until(lambda: narrow.stats().num_waiting == 2)
        client = server.client().with_options(max_retries=9)
        late = pool.submit(client.completions.create, model="small", prompt="ab", max_tokens=3)
        _wait_until(lambda: 'status="429"} 1.0' in server.send("metrics").text)
        held.close()
        assert late.result(60).usage.completion_tokens <= 3
        assert [one.result(60).status for one in waiting] == [200, 200]


def test_a_server_that_ends_refuses_new_requests_and_finishes_those_it_has(engine):
    with serving(engine) as server, ThreadPoolExecutor() as pool:
        with busy(engine):
            begun = pool.submit(server.send, "v1/completions", LONG)
            _wait_until(lambda: server.served.num_active_requests == 1)
            server.http.handle_exit(signal.SIGTERM, None)
            for path, body in (("v1/completions", LONG), *TOKENS.items(), ("ready", None)):
                reply = server.send(path, body)
                assert (reply.status, reply.headers["retry-after"]) == (503, "1"), path
                assert reply.json["error"]["code"] == "draining"
            assert not begun.done()
        assert len(begun.result(60).json["choices"][0]["text"]) > 0
        _wait_until(lambda: server.http.should_exit)
        assert not server.http.force_exit


@pytest.mark.parametrize("path", TOKENS)
def test_tokens_of_texts_count_as_a_request(engine, path):
    with serving(engine, max_requests=1) as server:
        server.served.num_active_requests = 1
        assert server.send(path, TOKENS[path]).status == 429
        server.served.num_active_requests = 0
        assert server.send(path, TOKENS[path]).status == 200
        assert server.served.num_active_requests == 0


@pytest.mark.slow
def test_others_are_answered_while_many_tokens_become_a_text(engine, monkeypatch):
    is_asked, others_were_answered = threading.Event(), threading.Event()

    def decode(self, tokens):
        is_asked.set()
        return str(others_were_answered.wait(20))

    monkeypatch.setattr(ServedModel, "decode", decode)
    with serving(engine) as server, ThreadPoolExecutor() as pool:
        many = pool.submit(server.send, "detokenize", {"tokens": [97] * 50_000})
        assert is_asked.wait(20)
        assert server.send("health").status == 200
        others_were_answered.set()
        assert many.result(60).json == {"prompt": "True"}


def _wait_until(is_so):
    for _ in range(600):
        if is_so():
            return
        threading.Event().wait(0.05)
    raise AssertionError("never true")
