"""What each path answers: to requests as they should be, and to all others."""

import asyncio
import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse

import pytest
from chat_tokenizer import write_chat_tokenizer
from model_server import LENGTH, byte_tokenizer, chat_tokenizer, serving, small_engine

from axcore.data.tokenizers.hugging_face_tokenizer import with_chat_template
from axcore.errors import DataError
from axcore.inference import Request, Sampling
from axcore.inference.programs import Programs
from axcore.serving import ApiKeys, HttpServer, ServedModel
from axcore.serving.api_error import ApiError
from axcore.serving.metrics import RequestStats
from axcore.serving.responses import CompletionSet, EventStream

GREEDY = Sampling(temperature=0)


def events(text):
    """Returns the items of a stream, and whether it said that it was done."""
    found = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [json.loads(part) for part in found if part != "[DONE]"], "[DONE]" in found


def test_a_completion_is_what_the_engine_draws_alone(server):
    tokens = tuple(int(one) for one in server.served.tokenizer.encode_prompt("def "))
    alone = server.served.engine.submit(Request(prompt=tokens, max_tokens=20, sampling=GREEDY))
    reply = server.send("v1/completions", {"prompt": "def ", "max_tokens": 20, "temperature": 0})
    choice = reply.json["choices"][0]
    result = alone.result(30)
    assert (choice["text"], choice["finish_reason"]) == (result.text, result.finish_reason)
    usage = reply.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, len(result.tokens))
    assert reply.json["model"] == "small"


def test_a_stream_adds_up_to_the_whole_answer(server):
    body = {"prompt": "ab", "max_tokens": 30, "temperature": 0, "logprobs": 1}
    whole = server.send("v1/completions", body).json
    options = {"stream": True, "stream_options": {"include_usage": True}}
    reply = server.send("v1/completions", {**body, **options})
    items, is_done = events(reply.text)
    assert is_done
    assert reply.headers["content-type"].startswith("text/event-stream")
    choices = [item["choices"][0] for item in items if item["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    for name in ("tokens", "token_logprobs", "text_offset"):
        pieces = [one for choice in choices for one in choice["logprobs"][name]]
        assert pieces == whole["choices"][0]["logprobs"][name]
    assert items[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_several_prompts_and_several_answers_come_in_order(server):
    body = {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 8, "seed": 5}
    choices = server.send("v1/completions", body).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    alone = [server.complete(text, max_tokens=8, seed=5, temperature=1) for text in ("ab", "cd")]
    assert [choices[0]["text"], choices[2]["text"]] == [one["text"] for one in alone]
    assert choices[0]["text"] != choices[1]["text"]


def test_token_numbers_are_a_prompt_too(server):
    tokens = server.send("tokenize", {"prompt": "ab"}).json["tokens"]
    assert server.complete(tokens, max_tokens=8) == server.complete("ab", max_tokens=8)


def test_an_echo_begins_with_the_prompt(server):
    text = server.complete("ab", max_tokens=8)["text"]
    assert server.complete("ab", max_tokens=8, echo=True)["text"] == "ab" + text


def test_an_answer_ends_before_a_stop(server):
    text = server.complete("ab", max_tokens=30)["text"]
    stop = text[7:9]
    choice = server.complete("ab", max_tokens=30, stop=stop)
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_tokens_and_texts_turn_into_one_another(server):
    found = server.send("tokenize", {"prompt": "aé"}).json
    assert found == {"tokens": [256, 97, 195, 169], "count": 4, "max_model_len": LENGTH}
    assert server.send("detokenize", {"tokens": found["tokens"]}).json == {"prompt": "aé"}
    plain = server.send("tokenize", {"prompt": "a", "add_special_tokens": False})
    assert plain.json["tokens"] == [97]


def test_special_tokens_that_a_text_writes_out_are_these_tokens(server):
    """As in texts of clients that render chat templates themselves; bos comes once."""
    for text, tokens in (("<|begin|>a<|end|>", [256, 97, 257]), ("a<|end|>", [256, 97, 257])):
        assert server.send("tokenize", {"prompt": text}).json["tokens"] == tokens
        used = server.send("v1/completions", {"prompt": text, "max_tokens": 1}).json["usage"]
        assert used["prompt_tokens"] == 3
        assert server.complete(text, max_tokens=8) == server.complete(tokens, max_tokens=8)
    options = {"parse_special": False, "add_special_tokens": False}
    plain = server.send("tokenize", {"prompt": "<|end|>", **options}).json["tokens"]
    assert plain == list(b"<|end|>")
    body = {"prompt": "<|end|>", "max_tokens": 1, **options}
    assert server.send("v1/completions", body).json["usage"]["prompt_tokens"] == len(plain)


@pytest.mark.parametrize("length", [LENGTH - 9, LENGTH - 2])
def test_an_answer_whose_length_nobody_named_has_as_many_tokens_as_there_is_room_for(
    server, length
):
    body = {"prompt": "a" * length, "ignore_eos": True}
    used = server.send("v1/completions", body).json["usage"]
    assert used["total_tokens"] == LENGTH


def test_a_response_says_when_it_was_made(server):
    server.served.created -= 1000
    for is_streamed in (False, True):
        reply = server.send(
            "v1/completions", {"prompt": "a", "max_tokens": 1, "stream": is_streamed}
        )
        first = reply.text.removeprefix("data: ").split("\n\n")[0]
        assert abs(json.loads(first)["created"] - time.time()) < 60
    server.served.created += 1000


def test_the_model_is_listed(server):
    (model,) = server.send("v1/models").json["data"]
    assert (model["id"], model["max_model_len"], model["step"]) == ("small", LENGTH, 3)
    assert server.send("v1/models/small").json == model


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "text"),
    [
        (
            "v1/completions",
            b"{",
            400,
            "invalid_json",
            "The body is not valid JSON: Expecting property",
        ),
        (
            "v1/completions",
            b"\xff",
            400,
            "invalid_json",
            "The body is not valid JSON: 'utf-8' codec",
        ),
        ("v1/completions", b"[" * 100_000, 400, "invalid_json", "too deep to be read"),
        ("v1/completions", b'{"seed": NaN}', 400, "invalid_json", "NaN is not a number of JSON"),
        ("v1/completions", b"[]", 400, "invalid_value", "the body is a list; expected an object"),
        ("v1/completions", {"prompt": ""}, 200, None, ""),
        (
            "v1/completions",
            {"prompt": "a", "\ud800": 1},
            400,
            "invalid_value",
            "the name of a field of the body is not valid Unicode text: there is half of a "
            "surrogate pair",
        ),
        (
            "v1/completions",
            {"prompt": "a", "response_format": {"\ud800": 1}},
            400,
            "invalid_value",
            "the name of a field of response_format is not valid Unicode text",
        ),
        ("v1/completions", {"prompt": [300]}, 400, "invalid_value", "the vocabulary has 264"),
        (
            "v1/completions",
            {"prompt": "a" * LENGTH},
            400,
            "context_length_exceeded",
            "This model's maximum context length is 128 tokens. However, you requested 130 tokens "
            "(129 in the prompt, 1 in the completion).",
        ),
        (
            "v1/completions",
            {"prompt": "ab", "max_tokens": LENGTH},
            400,
            "context_length_exceeded",
            "This model's maximum context length is 128 tokens. However, you requested 131 tokens "
            "(3 in the prompt, 128 in the completion).",
        ),
        (
            "v1/completions",
            {"prompt": "a", "model": "large"},
            404,
            "model_not_found",
            "There is no model 'large'; this server has 'small'.",
        ),
        ("v1/complete", {}, 404, "unknown_path", "There is nothing at '/v1/complete'"),
        ("v1/models", {}, 405, "unknown_path", "'/v1/models' does not take POST."),
        (
            "detokenize",
            {"tokens": [264]},
            400,
            "invalid_value",
            "not a list of numbers from 0 to 263",
        ),
    ],
)
def test_a_wrong_request_gets_an_error_in_openais_shape(server, path, body, status, code, text):
    reply = server.send(path, body)
    assert reply.status == status, reply.text
    if status == 200:
        return
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert text in error["message"]


TURN = {"role": "user", "content": "a"}


def test_a_run_of_bytes_chats_by_the_template_of_bytes(server):
    reply = server.send("v1/chat/completions", {"messages": [TURN], "max_tokens": 2})
    assert reply.status == 200, reply.text
    prompt = byte_tokenizer().encode_chat([TURN])
    assert reply.json["usage"]["prompt_tokens"] == len(prompt) == len("B<user>\na\n<assistant>\n")


def test_a_model_without_a_chat_template_names_the_flag_that_gives_one(engine, tmp_path):
    bare = write_chat_tokenizer(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    served = ServedModel(
        name="bare", engine=engine, tokenizer=chat_tokenizer(bare), max_length=LENGTH
    )
    with pytest.raises(ApiError, match=r"bare has no chat template; .* --chat-template FILE") as e:
        asyncio.run(served.chat_prompt([TURN], None))
    assert e.value.content["error"]["code"] == "no_chat_template"


def test_a_chat_template_is_given_by_file_or_by_name(engine, tmp_path):
    tokenizer = chat_tokenizer(write_chat_tokenizer(tmp_path / "model"))
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
    mine = with_chat_template(tokenizer, str(tmp_path / "mine.jinja"), where="--chat-template")
    assert mine.decode(mine.encode_chat([TURN])) == "a!"
    named = with_chat_template(tokenizer, "qwq", where="--chat-template")
    assert "<|im_start|>user\na<|im_end|>" in named.decode(named.encode_chat([TURN]))
    with pytest.raises(DataError, match=r"(?s)no chat template 'qwp'.*--chat-template.*qwq"):
        with_chat_template(tokenizer, "qwp", where="--chat-template")
    with pytest.raises(DataError, match="A ByteTokenizer takes no other chat template"):
        with_chat_template(byte_tokenizer(), "qwq", where="--chat-template")


def test_a_body_that_is_not_called_json_is_refused(server):
    """Browsers send such bodies from any page, without asking the server first."""
    reply = server.send("v1/completions", {"prompt": "a"}, content_type="text/plain")
    assert (reply.status, reply.json["error"]["code"]) == (415, "unsupported_media_type")


def test_no_site_may_read_answers_from_a_browser(server):
    reply = server.send("v1/models", origin="http://elsewhere.example")
    assert not [name for name in reply.headers if name.lower().startswith("access-control")]


def test_limits_are_kept(engine):
    with serving(engine, max_body_bytes=1000, max_tokens=5, max_prompt_tokens=4) as server:
        reply = server.send("v1/completions", {"prompt": "a" * 2000})
        assert (reply.status, reply.json["error"]["code"]) == (413, "body_too_long")
        body = {"prompt": "a", "max_tokens": 6}
        assert "at most 5 are accepted" in server.send("v1/completions", body).text
        body = {"prompt": "a", "ignore_eos": True}
        assert server.send("v1/completions", body).json["usage"]["completion_tokens"] == 5
        reply = server.send("v1/completions", {"prompt": "abcd", "max_tokens": 1})
        assert "prompt has 5 tokens; at most 4" in reply.text


def test_a_body_without_a_length_is_limited_too(engine):
    with serving(engine, max_body_bytes=1000) as server:
        host, port = server.url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            client.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_arrive_ends(engine):
    with serving(engine, body_timeout_s=0.2) as server:
        host, port = server.url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: 10\r\n\r\n{{".encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_more_tokens_than_detokenize_reads_are_refused(server):
    assert server.send("detokenize", {"tokens": [97] * 131_072}).status == 200
    reply = server.send("detokenize", {"tokens": [97] * 131_073})
    assert (reply.status, "at most 131072 are accepted" in reply.text) == (400, True)


def test_tokenize_reads_64_kib_whatever_the_length_of_the_model(server):
    assert server.send("tokenize", {"prompt": "a" * (1 << 16)}).json["count"] > LENGTH
    reply = server.send("tokenize", {"prompt": "a" * ((1 << 16) + 1)})
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")


HEAD = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
LONG = b'{"max_tokens": 1, "prompt": "ab"' + b" " * 99_999 + b"}"


@contextlib.contextmanager
def half_a_body(server):
    """Sends the half of a long body."""
    address = urlparse(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(f"{HEAD}content-length: {len(LONG)}\r\n\r\n".encode() + LONG[:50_000])
        while not server.served.bodies.num_bytes:
            time.sleep(0.01)
        yield client


def test_a_long_body_waits_until_there_is_room_for_it_and_a_short_one_does_not(engine):
    with serving(engine, max_bodies_bytes=1) as server, ThreadPoolExecutor() as pool:
        with half_a_body(server) as first:
            second = pool.submit(server.send, "v1/completions", LONG)
            assert server.send("v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200
            assert not second.done()
            first.sendall(LONG[50_000:])
            assert first.recv(4096).startswith(b"HTTP/1.1 200")
        assert second.result(60).status == 200


def test_a_long_body_for_which_no_room_comes_is_refused(engine):
    with serving(engine, max_bodies_bytes=1, body_timeout_s=0.2, retry_after_s=7) as server:
        asyncio.run(server.served.bodies.take("somebody", 1))
        reply = server.send("v1/completions", LONG)
        assert (reply.status, reply.headers["retry-after"]) == (429, "7")
        assert reply.json["error"]["code"] == "too_many_bytes"


def test_a_long_body_that_waits_while_the_server_ends_is_refused(engine):
    with ThreadPoolExecutor() as pool, serving(engine, max_bodies_bytes=1) as server:
        asyncio.run(server.served.bodies.take("somebody", 1))
        waiting = pool.submit(server.send, "v1/completions", LONG)
        while not server.served.bodies.num_waiting:
            time.sleep(0.01)
        server.http.should_exit = True
        assert waiting.result(60).status == 503


def test_more_requests_than_may_be_are_sent_away(engine):
    with serving(engine, max_requests=1, retry_after_s=7) as server:
        server.served.num_active_requests = 1
        reply = server.send("v1/completions", {"prompt": "a"})
        assert (reply.status, reply.headers["retry-after"]) == (429, "7")
        assert reply.json["error"]["type"] == "rate_limit_error"
        assert server.send("health").status == 200
        server.served.num_active_requests = 0
        assert server.send("v1/completions", {"prompt": "a"}).status == 200
        assert server.served.num_active_requests == 0


def test_keys_are_asked_for_wherever_something_is_to_be_learnt(engine):
    with serving(engine, keys=ApiKeys(("key-of-somebody",))) as server:
        for path in ("v1/models", "metrics", "stats"):
            assert server.send(path).status == 401
            assert server.send(path, authorization="Bearer key-of-somebody").status == 200
        assert server.send("v1/completions", {"prompt": "a"}).status == 401
        assert [server.send(path).status for path in ("", "health", "ready")] == [200, 200, 200]


def test_a_name_that_is_not_the_servers_is_refused(engine):
    """A page can make a name of its own point at this machine; its requests say that name."""
    with serving(engine, hosts=("127.0.0.1", "model.example")) as server:
        assert server.send("v1/models").status == 200
        assert server.send("v1/models", host="Model.Example:80").status == 200
        reply = server.send("v1/models", host="elsewhere.example")
        assert (reply.status, reply.json["error"]["code"]) == (421, "unknown_host")


def test_a_draining_server_finishes_and_takes_nothing_new(engine):
    with serving(engine) as server:
        assert server.send("ready").status == 200
        server.served.is_draining = True
        assert server.send("health").status == 200
        for path, body in (("ready", None), ("v1/completions", {"prompt": "a"})):
            reply = server.send(path, body)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert reply.json["error"]["code"] == "draining"


@pytest.mark.slow
def test_a_server_whose_engine_failed_says_so_without_its_inside_and_ends(monkeypatch, caplog):
    def fail(self, call, length):
        raise RuntimeError("secret of the device")

    asked = [("health", None), ("ready", None), ("v1/completions", {"prompt": "a"})]
    with small_engine(byte_tokenizer()) as engine, serving(engine) as server:
        monkeypatch.setattr(Programs, "prefill", fail)
        with monkeypatch.context() as patched:
            patched.setattr(HttpServer, "on_tick", _goes_on)
            for path, body in asked[::-1] + asked:
                reply = server.send(path, body)
                assert (reply.status // 100, reply.json["error"]["code"]) == (5, "engine_error")
                assert "secret" not in reply.text
        deadline = time.monotonic() + 60
        while not server.http.should_exit:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert "the server ends: a step of the engine failed" in caplog.text
    assert "secret of the device" in caplog.text


async def _goes_on(self, counter):
    return self.should_exit


def test_a_number_that_no_array_holds_fails_nobody(server):
    """A request that the engine cannot write down must not end it for all others."""
    assert server.complete("ab", top_k=3_000_000_000)["text"] == server.complete("ab")["text"]


@pytest.mark.parametrize(
    ("proxies", "client"), [(None, "127.0.0.1"), ("127.0.0.1", "192.0.2.7"), ("::1", "127.0.0.1")]
)
def test_only_a_proxy_that_is_named_says_who_the_client_is(engine, caplog, proxies, client):
    caplog.set_level("INFO", "axcore.serving.access")
    with serving(engine, proxies=proxies) as server:
        server.send("tokenize", {"prompt": "a"}, x_forwarded_for="192.0.2.7")
    (line,) = caplog.messages
    assert line.startswith(f"{client} POST /tokenize 200")


def test_each_response_has_an_id_and_so_has_its_line_in_the_log(server, caplog):
    caplog.set_level("INFO", "axcore.serving.access")
    secret = "nobody-may-read-this"
    body = {"prompt": secret, "max_tokens": 3}
    assert server.send("v1/completions", body, x_request_id="mine-1").headers["x-request-id"] == (
        "mine-1"
    )
    forged = server.send("v1/completions", body, x_request_id="two words")
    assert forged.headers["x-request-id"].startswith("req-")
    deadline = time.monotonic() + 10
    while len(caplog.messages) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    line = next(line for line in caplog.messages if line.endswith("id=mine-1"))
    assert "POST /v1/completions 200" in line
    assert "tokens=3" in line
    assert secret not in "".join(caplog.messages)


def test_metrics_count_what_was_asked(server):
    def figure(name):
        lines = server.send("metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"axcore_{name}"))

    before = figure("completion_tokens_total"), figure("time_to_first_token_seconds_count")
    server.complete("ab", max_tokens=6, ignore_eos=True)
    after = figure("completion_tokens_total"), figure("time_to_first_token_seconds_count")
    assert (after[0] - before[0], after[1] - before[1]) == (6, 1)
    assert figure("cache_pages ") == server.served.engine.stats().pages_total
    assert figure("compilations_total") == 0


def wait_until(is_so, seconds=20):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_bias_of_a_token_that_there_is_not_names_its_field(server):
    reply = server.send("v1/completions", {"prompt": "a", "logit_bias": {"9999": 1}})
    assert (reply.status, reply.json["error"]["param"]) == (400, "logit_bias")
    assert "logit_bias names token 9999" in reply.json["error"]["message"]


def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(caplog):
    async def items():
        yield {"text": "ab"}
        raise RuntimeError("secret of the inside")

    sent = []

    async def run():
        never = asyncio.Event()

        async def receive():
            await never.wait()

        async def send(message):
            sent.append(message)

        stream = EventStream(items(), CompletionSet((), RequestStats()), on_end=lambda: None)
        await stream({"type": "http"}, receive, send)

    asyncio.run(run())
    text = b"".join(one.get("body", b"") for one in sent).decode()
    (first, last), is_done = events(text)
    assert (first, is_done) == ({"text": "ab"}, False)
    assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "internal_error")
    assert "secret" not in text
    assert "secret of the inside" in caplog.text
    assert not sent[-1]["more_body"]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_leaves_its_slot(server, is_streamed):
    stats = server.served.engine.stats
    host, port = server.url.removeprefix("http://").rstrip("/").split(":")
    body = {"prompt": "ab", "max_tokens": 120, "ignore_eos": True, "n": 64, "stream": is_streamed}
    sent = json.dumps(body).encode()
    drawn = stats().num_sampled_tokens
    with socket.create_connection((host, int(port)), timeout=30) as client:
        head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        wait_until(lambda: stats().num_running)
    wait_until(lambda: stats().num_running + stats().num_waiting == 0)
    assert stats().num_sampled_tokens - drawn < 64 * 120 / 2
    wait_until(lambda: server.served.num_active_requests == 0)


def test_an_answer_follows_its_schema(server):
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["age"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    choice = server.complete("ab", max_tokens=60, response_format=named, temperature=1, seed=1)
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["text"])) == {"age"}
    choice = server.complete("ab", max_tokens=9, response_format={"type": "regex", "regex": "x{3}"})
    assert choice["text"] == "xxx"


@pytest.mark.parametrize(
    ("named", "param", "text"),
    [
        ({"type": "yaml"}, "response_format.type", "is 'yaml'; expected 'text' or 'json_object'"),
        ({"type": "json_schema"}, "response_format.json_schema.schema", "is missing; expected a"),
        ({"type": "regex", "regex": "("}, "response_format", "the grammar is no "),
        (
            {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
            "response_format",
            "the grammar ",
        ),
    ],
)
def test_a_format_that_cannot_be_followed_is_named(server, named, param, text):
    reply = server.send("v1/completions", {"prompt": "a", "response_format": named})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert text in reply.json["error"]["message"]


def test_a_request_that_only_looks_at_its_prompt_pays_for_no_answer(server):
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}
    used = server.send("v1/completions", body).json["usage"]
    assert (used["prompt_tokens"], used["completion_tokens"], used["total_tokens"]) == (4, 0, 4)


def test_an_echo_has_the_log_probabilities_of_its_prompt(server):
    """Those of a text that the model continued are those of the same text read as a prompt."""
    body = {"max_tokens": 6, "logprobs": 1, "echo": True, "ignore_eos": True}
    drawn = server.complete("ab", **body)
    tokens = [
        int(text.removeprefix("token_id:")) if len(text) > 1 else ord(text)
        for text in drawn["logprobs"]["tokens"]
    ]
    read = server.complete(tokens, **{**body, "max_tokens": 0})
    assert read["logprobs"]["tokens"] == drawn["logprobs"]["tokens"]
    assert read["logprobs"]["token_logprobs"][0] is None
    assert read["logprobs"]["token_logprobs"][1:] == pytest.approx(
        drawn["logprobs"]["token_logprobs"][1:], abs=1e-4
    )
    for likeliest, one in zip(
        read["logprobs"]["top_logprobs"][1:], read["logprobs"]["token_logprobs"][1:], strict=True
    ):
        assert max(likeliest.values()) >= one
    drawn_likeliest = drawn["logprobs"]["top_logprobs"][-6:]
    read_likeliest = read["logprobs"]["top_logprobs"][-6:]
    assert [set(one) for one in drawn_likeliest] == [set(one) for one in read_likeliest]
    assert read["finish_reason"] == "length"


@pytest.mark.parametrize("number", [0, 1, 5])
def test_an_echo_has_as_many_alternatives_at_each_token_of_its_prompt_as_of_its_answer(
    server, number
):
    body = {"max_tokens": 2, "logprobs": number, "echo": True, "ignore_eos": True}
    found = server.complete("the quick", **body)["logprobs"]["top_logprobs"]
    assert found[0] is None
    assert [len(one or ()) for one in found[1:]] == [number] * (len(found) - 1)
    for likeliest in found[1:] if number else ():
        assert list(likeliest.values()) == sorted(likeliest.values(), reverse=True)
