"""64 clients at once, of which many go away or send nonsense: nothing leaks, no answer changes.

The engine has `fixed_shapes`, so that answers can be compared to the last letter.
"""

import asyncio
import gc
import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from model_server import LENGTH, byte_tokenizer, serving, small_engine

from axcore.inference import Answer, EngineConfig

NUM_CLIENTS = 64
FIXED = EngineConfig(
    max_rows=8,
    max_length=LENGTH,
    page_size=16,
    step_tokens=40,
    tokens_per_call=4,
    fixed_shapes=True,
)
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
ASKED = [
    {"prompt": text, "max_tokens": size, "temperature": temperature, "seed": seed}
    for seed, (text, size) in enumerate([("a", 5), ("the quick", 40), ("x" * 60, 20), ("é", 90)])
    for temperature in (0, 1)
]


def message(body, *, length=None):
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """One client: what it asks is random, what it expects is not.

    Args:
        address: Of the server.
        expected: The text of each request of `ASKED`, answered alone.
        seed: Decides what it asks.
    """

    def __init__(self, address, expected, seed):
        self.address, self.expected = address, expected
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
        index = self.random.randrange(len(ASKED))
        return index, message(json.dumps({**ASKED[index], **fields}).encode())

    async def ask(self, reader, writer):
        index, sent = self.choose()
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head + body
        assert json.loads(body)["choices"][0]["text"] == self.expected[index]

    async def read_stream(self, reader, writer):
        index, sent = self.choose(stream=True)
        writer.write(sent)
        text = ""
        async for line in reader:
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
        assert text == self.expected[index]

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


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [12, pytest.param(60, marks=pytest.mark.long)])
def test_answers_under_load_are_those_alone_and_nothing_leaks(seconds):
    with small_engine(byte_tokenizer(), FIXED) as engine, serving(engine) as server:
        expected = [
            server.send("v1/completions", asked).json["choices"][0]["text"] for asked in ASKED
        ]
        host, port = server.url.removeprefix("http://").rstrip("/").split(":")
        clients = [Client((host, int(port)), expected, seed) for seed in range(NUM_CLIENTS)]

        async def run(until):
            await asyncio.gather(*(client.run(until) for client in clients))

        asyncio.run(run(time.monotonic() + seconds / 3))
        used = resident_bytes()
        asyncio.run(run(time.monotonic() + seconds * 2 / 3))
        done = sum((client.done for client in clients), Counter())
        assert min(done.values()) > 10, done
        stats = engine.stats
        wait_until(lambda: stats().num_running + stats().num_waiting == 0)
        wait_until(lambda: server.served.num_answering == 0)
        wait_until(lambda: not server.http.server_state.connections)
        assert stats().pages_used == 0
        assert stats().compilations_after_warm_up == 0
        assert resident_bytes() - used < 32 << 20
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, Answer)]
        assert len(kept) <= 2 * FIXED.max_rows  # the engine keeps what its last steps were of
        for asked, text in zip(ASKED, expected, strict=True):
            assert server.send("v1/completions", asked).json["choices"][0]["text"] == text
