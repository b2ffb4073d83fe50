"""A server under requests that cost as much as they can: it answers others, whatever is sent.

`pytest -s` prints, for each, how long `/health` took at most and what became of the requests.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlparse

import pytest
from counts import count
from hostile_requests import Hostile, hostile_requests

NUM_CLIENTS = 64
PATIENCE_S = [0.4, pytest.param(3, marks=pytest.mark.long)]
"""Seconds after which a hostile client leaves; with 3, more of them get an answer."""

MOST_S = 5
"""Seconds to `/health` on a machine that does other work, as two cores do that run several suites:
2.6 s were seen at a load average of 15, and 7 s at 7 where the server itself parsed long bodies."""

PLAIN = Hostile("v1/completions", b'{"prompt": "ab", "max_tokens": 2, "temperature": 0}')
REQUESTS = hostile_requests()


@pytest.fixture(scope="module")
def port():
    script = str(Path(__file__).parents[1] / "support" / "hostile_server.py")
    server = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server:
        yield urlparse(server.stdout.readline().strip()).port
        server.stdin.close()
        assert server.wait(60) == 0  # the same server has answered all


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("patience_s", PATIENCE_S)
@pytest.mark.parametrize("name", REQUESTS)
def test_others_are_answered_under_64_hostile_requests_and_after_they_left(port, name, patience_s):
    slowest, statuses, plain_s = _under_fire(port, REQUESTS[name], patience_s)
    if max(slowest, plain_s) >= MOST_S:  # other work of the machine, perhaps
        slowest, statuses, plain_s = _under_fire(port, REQUESTS[name], patience_s)
    print(f"\n{name}: /health in {slowest:.2f} s, a request in {plain_s:.2f} s, {statuses}")
    is_refused = statuses.keys() <= {"200", "400", "413", "429", "left"}
    is_in_time = max(slowest, plain_s) < MOST_S
    count("hostile requests, others answered meanwhile", int(is_refused and is_in_time), 1)
    assert is_in_time, (slowest, plain_s)
    assert is_refused, statuses


def test_there_are_sixty_of_them():
    assert len(REQUESTS) >= 60


def _under_fire(
    port: int, hostile: Hostile, patience_s: float
) -> tuple[float, Counter[str], float]:
    """Return the slowest `/health`, what clients got, and how long a plain request took after."""
    times, is_over = [], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            began = time.monotonic()
            assert _send(port, Hostile("health", b""), timeout_s=30) == "200"
            times.append(time.monotonic() - began)

    with ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
        watching = pool.submit(watch)
        try:
            sent = [
                pool.submit(_send, port, hostile, timeout_s=patience_s) for _ in range(NUM_CLIENTS)
            ]
            statuses = Counter(one.result() for one in sent)
            began = time.monotonic()
            assert _send(port, PLAIN, timeout_s=60) == "200"
            plain_s = time.monotonic() - began
        finally:
            is_over.set()
        watching.result()
    return max(times), statuses, plain_s


def _send(port: int, request: Hostile, *, timeout_s: float) -> str:
    """Return the status of the response; `left` where none came in time."""
    ends = time.monotonic() + timeout_s
    head = (
        f"{'POST' if request.body else 'GET'} /{request.path} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(request.body)}\r\n"
        "connection: close\r\n\r\n"
    )
    with contextlib.suppress(TimeoutError):
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            with contextlib.suppress(ConnectionError):  # a refusal may come before all was sent
                connection.sendall(head.encode() + request.body)
            connection.settimeout(max(0.01, ends - time.monotonic()))
            answer = connection.recv(4096)
            while answer and connection.recv(1 << 16):
                connection.settimeout(max(0.01, ends - time.monotonic()))
        return answer.split(b" ", 2)[1].decode()
    return "left"
