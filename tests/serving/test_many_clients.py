"""64 clients at once, of which many go away or send nonsense: nothing leaks, no answer changes.

With `fixed_shapes` every answer is compared to the last letter. An engine as it is by default calls
programs of several shapes, which round differently: a sample between two tokens that are as good as
equal may fall on either. So there greedy answers are compared, at none of whose tokens another one
is nearly as likely; those of a grammar have to match it, and all others have to be whole.
"""

import asyncio
import gc
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import attrs
import pytest
from chat_tokenizer import write_chat_tokenizer
from model_server import LENGTH, byte_tokenizer, chat_tokenizer, serving, small_engine

from axcore.inference import CompletionStream, EngineConfig

NUM_CLIENTS = 64
FIXED = EngineConfig(
    max_num_seqs=8,
    max_length=LENGTH,
    page_size=16,
    max_num_batched_tokens=40,
    num_decode_steps=4,
    fixed_shapes=True,
)
FEW_PAGES = EngineConfig(max_num_seqs=8, max_length=LENGTH, num_pages=20)
"""Two of the longest texts and a half fit into its pages."""

TEXTS = (("a", 5), ("the quick", 40), ("x" * 60, 20), ("é", 90))
PATTERN = "[0-9]{3}-[a-f]{4}"
NONSENSE = (
    b"",
    b"{",
    b"[1]",
    b"\xff\xfe",
    b'{"prompt": 1}',
    b'{"prompt": "a", "max_tokens": "many"}',
    b'{"prompt": "a", "unknown": 1}',
    b'{"prompt": "' + b"a" * 500 + b'"}',
    b"[" * 5000,
)
COMPLETIONS, CHATS = "v1/completions", "v1/chat/completions"


class Found(NamedTuple):
    """An answer: its text, why it ended, and how many tokens it has."""

    text: str
    reason: str
    num_tokens: int


@attrs.frozen
class Asked:
    """A request, and what makes its answer right.

    Args:
        path: Where it goes.
        body: What it says.
        is_right: Of an answer.
    """

    path: str
    body: dict
    is_right: Callable[[Found], bool]


def found_in(reply, path):
    """Returns the first answer of a full response."""
    choice = reply["choices"][0]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    return Found(text, choice["finish_reason"], reply["usage"]["completion_tokens"])


def message(body, path=COMPLETIONS, *, length=None):
    head = (
        f"POST /{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """One client: what it asks is random, what it expects is not.

    Args:
        address: Of the server.
        requests: What it may ask.
        seed: Decides what it asks.
    """

    def __init__(self, address, requests, seed):
        self.address, self.requests = address, requests
        self.random = random.Random(seed)
        self.done = Counter()

    async def run(self, until):
        acts = (self.ask, self.ask, self.read_stream, self.go_away, self.send_nonsense)
        while time.monotonic() < until:
            act = self.random.choice(acts)
            reader, writer = await asyncio.open_connection(*self.address, limit=1 << 20)
            try:
                await asyncio.wait_for(act(reader, writer), 60)
            finally:
                writer.close()
            self.done[act.__name__] += 1

    def choose(self, **fields):
        asked = self.random.choice(self.requests)
        fields["priority"] = self.random.choice((0, 0, -1, 5))
        return asked, message(json.dumps({**asked.body, **fields}).encode(), asked.path)

    async def ask(self, reader, writer):
        asked, sent = self.choose()
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head + body
        self.check(asked, found_in(json.loads(body), asked.path))

    async def read_stream(self, reader, writer):
        asked, sent = self.choose(stream=True, stream_options={"include_usage": True})
        writer.write(sent)
        text, reason, events = "", None, []
        async for line in reader:
            events += [json.loads(line[6:])] if line.startswith(b"data: {") else []
        for choice in (one["choices"][0] for one in events if one["choices"]):
            text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            reason = choice["finish_reason"] or reason
        self.check(asked, Found(text, reason, events[-1]["usage"]["completion_tokens"]))

    def check(self, asked, found):
        assert asked.is_right(found), (asked.body, found)

    async def go_away(self, reader, writer):
        if self.random.random() < 0.3:  # in the middle of the body
            writer.write(message(b'{"prompt": ', length=100))
        else:
            writer.write(self.choose(stream=self.random.random() < 0.5, n=3)[1])
        await writer.drain()
        await asyncio.sleep(self.random.random() * 0.2)
        writer.transport.abort()

    async def send_nonsense(self, reader, writer):
        writer.write(message(self.random.choice(NONSENSE)))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400"), head
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def wait_until(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def under_load(engine, server, requests, seconds):
    """Lets clients ask for a while; nothing of what they asked may be left then."""
    host, port = server.url.removeprefix("http://").rstrip("/").split(":")
    clients = [Client((host, int(port)), requests, seed) for seed in range(NUM_CLIENTS)]

    async def run(until):
        await asyncio.gather(*(client.run(until) for client in clients))

    asyncio.run(run(time.monotonic() + seconds / 3))
    used = resident_bytes()
    asyncio.run(run(time.monotonic() + seconds * 2 / 3))
    done = sum((client.done for client in clients), Counter())
    assert min(done.values()) > 10, done
    stats = engine.stats
    wait_until(lambda: stats().num_running + stats().num_waiting == 0)
    wait_until(lambda: server.served.num_active_requests == 0)
    wait_until(lambda: not server.http.server_state.connections)
    assert stats().pages_used == 0
    assert stats().compilations_after_warm_up == 0
    assert resident_bytes() - used < 32 << 20
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, CompletionStream)]
    assert len(kept) <= 2 * engine.config.max_num_seqs  # it keeps what its last steps were of


def alone(server, path, body):
    reply = server.send(path, body)
    assert reply.status == 200, reply.text
    return found_in(reply.json, path)


SECONDS = pytest.mark.parametrize("seconds", [12, pytest.param(60, marks=pytest.mark.long)])


@pytest.mark.slow
@SECONDS
def test_answers_under_load_are_those_alone_and_nothing_leaks(seconds):
    with small_engine(byte_tokenizer(), FIXED) as engine, serving(engine) as server:
        bodies = [
            {"prompt": text, "max_tokens": size, "temperature": temperature, "seed": seed}
            for seed, (text, size) in enumerate(TEXTS)
            for temperature in (0, 1)
        ]
        expected = [alone(server, COMPLETIONS, body) for body in bodies]
        requests = [
            Asked(COMPLETIONS, body, partial(Found.__eq__, found))
            for body, found in zip(bodies, expected, strict=True)
        ]
        under_load(engine, server, requests, seconds)
        assert [alone(server, COMPLETIONS, body) for body in bodies] == expected


@pytest.mark.slow
@SECONDS
def test_a_default_engine_short_of_pages_answers_all_who_stay_and_leaks_nothing(seconds, tmp_path):
    pytest.importorskip("llguidance")
    tokenizer = chat_tokenizer(write_chat_tokenizer(tmp_path))
    with small_engine(tokenizer, FEW_PAGES) as engine, serving(engine) as server:
        requests = [
            *(greedy(server, COMPLETIONS, {"prompt": text}, size) for text, size in TEXTS),
            *(greedy(server, CHATS, {"messages": chat(text)}, size) for text, size in TEXTS),
            *(
                Asked(
                    path,
                    {**named, "max_tokens": 30, "seed": 3, "ignore_eos": True},
                    lambda found: (found.reason, found.num_tokens) == ("length", 30),
                )
                for path, named in (
                    (COMPLETIONS, {"prompt": "a"}),
                    (CHATS, {"messages": chat("a")}),
                )
            ),
            Asked(
                CHATS,
                {"messages": chat("b"), "response_format": {"type": "regex", "regex": PATTERN}},
                lambda found: found.reason == "stop" and bool(re.fullmatch(PATTERN, found.text)),
            ),
        ]
        under_load(engine, server, requests, seconds)
        assert engine.stats().num_preemptions > 0
        assert engine.stats().num_cached_prompt_tokens > 0


def chat(text):
    return [{"role": "user", "content": text}]


def greedy(server, path, named, size):
    """Returns a request whose likeliest tokens no rounding changes, with its answer alone."""
    body = {**named, "max_tokens": size, "temperature": 0, "ignore_eos": True}
    wanted = {"logprobs": 2} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 2}
    found = server.send(path, {**body, **wanted}).json["choices"][0]["logprobs"]
    if path == COMPLETIONS:
        likeliest = [sorted(one.values()) for one in found["top_logprobs"]]
    else:
        likeliest = [
            sorted(best["logprob"] for best in one["top_logprobs"]) for one in found["content"]
        ]
    margin = min(best - second for second, best in likeliest)
    assert margin > 1e-4, (named, margin)
    return Asked(path, body, partial(Found.__eq__, alone(server, path, body)))
