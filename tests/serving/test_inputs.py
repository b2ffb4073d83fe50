"""Parts of messages that are not text: what a server reads, and what it refuses by name."""

import base64
import contextlib
import io
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from model_server import SMALL, serving
from openai import BadRequestError
from point_model import NUM_SOFT, point_model

from axcore.data import ByteTokenizer, Feature, FeatureArray
from axcore.inference import Engine
from axcore.serving.inputs import InputReader

TOKENIZER = ByteTokenizer.Config(special_tokens=("<point>",)).build()


class Point(Feature):
    """A point `[3]` in a file of numpy's."""

    part_type = "image_url"

    @property
    def fields(self):
        return ("file",)

    def arrays(self):
        return {"": FeatureArray((3,), "float32")}

    def make(self, record, rng):
        return {"": np.load(io.BytesIO(record["file"]), allow_pickle=False)}


READER = InputReader(Point.Config().build(), "<point>", 259, NUM_SOFT)


@pytest.fixture(scope="module")
def engine():
    model = point_model(TOKENIZER.vocab_size).build()
    with Engine(model, model.init(5), TOKENIZER, SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def server(engine):
    with serving(engine) as made:
        made.served.reader = READER
        yield made


def file_of(*numbers):
    file = io.BytesIO()
    np.save(file, np.asarray(numbers, np.float32))
    return file.getvalue()


def url_of(*numbers):
    return "data:image/png;base64," + base64.b64encode(file_of(*numbers)).decode()


def part(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(words="where is it?"):
    return {"type": "text", "text": words}


def ask(server, *content, **values):
    values = {"temperature": 0, "max_tokens": 6, **values}
    messages = [{"role": "user", "content": [*content]}]
    return server.client().chat.completions.create(model="small", messages=messages, **values)


def refused(server, *content):
    with pytest.raises(BadRequestError) as caught:
        ask(server, *content)
    return caught.value.body


def test_an_answer_follows_from_the_input(server):
    found = {
        ask(server, part(url_of(n, -n, 2 * n)), text()).choices[0].message.content
        for n in (-5.0, 0.0, 5.0)
    }
    assert len(found) > 1


def test_what_an_input_costs_in_tokens_is_counted(server):
    alone = ask(server, text()).usage.prompt_tokens
    assert ask(server, part(url_of(1, 2, 3)), text()).usage.prompt_tokens == alone + NUM_SOFT


def test_detail_is_ignored(server):
    url = url_of(1, 2, 3)
    found = [ask(server, part(url, **more), text()) for more in ({}, {"detail": "low"})]
    assert found[0].choices[0].message.content == found[1].choices[0].message.content


def test_a_stream_has_the_same_answer(server):
    content = part(url_of(4, 2, 3)), text()
    whole = ask(server, *content).choices[0].message.content
    pieces = ask(server, *content, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in pieces) == whole


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,%%%", "is not base64"),
        ("data:image/png,abc", "another form than data:image/png;base64"),
        ("data:image/png;base64,AAAA", "cannot be read"),
        ("https://example.com/x.png", "does not fetch"),
        ("file:///etc/passwd", "does not fetch"),
        ("data:image/png;base64,é", "is not base64"),
        ("http://[", "is not a URL"),
        ("", "is missing"),
    ],
)
def test_a_part_that_cannot_be_read_is_named(server, url, words):
    error = refused(server, text(), part(url))
    assert words in error["message"]
    assert error["param"] == "messages[0].content[1].image_url.url"


def test_an_input_of_another_shape_is_refused(server):
    error = refused(server, part(url_of(1, 2)), text())
    assert "takes float32 of shape (3,)" in error["message"]
    assert error["param"] == "messages"


def test_a_part_of_another_type_is_refused(server):
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert "reads text and image_url only" in refused(server, sound)["message"]
    assert "the model reads 'text' only" in refused(server, {"type": "video"})["message"]


def test_the_mark_of_an_input_cannot_be_written_in_a_text(server):
    assert (
        "0 parts that are not text, and 1 times '<point>'"
        in refused(server, text("<point> hello"))["message"]
    )


def test_soft_tokens_cannot_be_sent(server):
    with pytest.raises(BadRequestError, match="prompt has token 16777216"):
        server.client().completions.create(model="small", prompt=[1 << 24], max_tokens=1)


def test_too_many_parts_are_refused_before_they_are_read(server):
    error = refused(server, *[part("data:image/png;base64,%%%")] * 100, text())
    assert error["code"] == "context_length_exceeded"


def test_a_model_of_text_refuses_parts(engine):
    with serving(engine) as plain:
        assert "reads text only" in refused(plain, part(url_of(1, 2, 3)), text())["message"]


class Files(BaseHTTPRequestHandler):
    """`/point` is a file, `/away` leads to another server, and there is nothing else."""

    def do_GET(self):
        status = {"/point": 200, "/slow": 200, "/away": 302}.get(self.path, 404)
        self.send_response(status)
        if self.path == "/slow":
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(30):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
            return
        if status == 302:
            self.send_header("location", "http://example.com/")
        self.end_headers()
        self.wfile.write(file_of(1, 2, 3))

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def origin():
    with HTTPServer(("127.0.0.1", 0), Files) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{files.server_port}"
        files.shutdown()


def test_a_file_that_comes_drop_by_drop_is_given_up(engine, origin, monkeypatch):
    monkeypatch.setattr("axcore.serving.inputs._TIMEOUT_S", 0.5)
    with serving(engine, media_origins=(origin,)) as server:
        server.served.reader = READER
        error = refused(server, part(f"{origin}/slow"), text())
        assert "it took more than 0.5 s" in error["message"] or "timed out" in error["message"]


def test_files_are_fetched_from_servers_that_are_allowed(engine, origin):
    with serving(engine, media_origins=(origin,)) as server:
        server.served.reader = READER
        found = ask(server, part(f"{origin}/point"), text()).choices[0].message.content
        assert found == ask(server, part(url_of(1, 2, 3)), text()).choices[0].message.content
        for path, words in (("/away", "status 302"), ("/none", "status 404")):
            error = refused(server, part(origin + path), text())
            assert words in error["message"]
            assert error["code"] == "url_not_fetched"
        other = origin.replace("127.0.0.1", "localhost")
        assert refused(server, part(f"{other}/point"))["code"] == "url_not_allowed"
