"""The judge asks a server, and a reply without a score is an error and not a 0."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from axcore.errors import ConfigError, DataError
from axcore.rewards import Judge


@pytest.fixture
def server():
    """A server that answers with what `replies` has next: a text, or a status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append((self.path, body, self.headers["Authorization"]))
            reply = made.replies.pop(0)
            self.send_response(reply if isinstance(reply, int) else 200)
            self.end_headers()
            content = {"choices": [{"message": {"content": reply}}]}
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_):
            pass

    made = HTTPServer(("localhost", 0), Handler)
    made.asked, made.replies = [], []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def judge(server, **values):
    url = f"http://localhost:{server.server_port}/v1"
    return Judge.Config(base_url=url, model="m", api_key_variable="NO_SUCH_KEY", **values).build()


def test_the_last_score_of_the_reply_counts_and_braces_in_texts_stay(server):
    server.replies = ["Score: 1 would be harsh.\nScore: 7.5"]
    template = "{prompt}|{completion}|{answer}"
    found = judge(server, template=template).score("p", "{answer}", {"answer": "a"})
    ((path, body, key),) = server.asked
    assert found == 0.75
    assert (path, key, body["temperature"]) == ("/v1/chat/completions", None, 0)
    assert body["messages"] == [{"role": "user", "content": "p|{answer}|a"}]


def test_a_busy_server_is_asked_again(server, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    server.replies = [503, 429, "Score: 10"]
    assert judge(server).score("p", "c", {}) == 1


@pytest.mark.parametrize(
    ("replies", "error"),
    [(["none"], "no score: 'none'"), ([400], "did not answer: 400"), ([500, 500], "500")],
)
def test_a_reply_without_a_score_is_an_error(server, replies, error, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    server.replies = list(replies)
    with pytest.raises(DataError, match=error):
        judge(server, retries=1).score("p", "c", {})
    assert server.replies == []


def test_a_pattern_without_a_group_is_refused(server):
    with pytest.raises(ConfigError, match="it has no group"):
        judge(server, score_pattern="Score")
