"""Forms with files, and the queue of calls that answers them."""

import asyncio
import threading

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.serving import Endpoint
from axcore.serving.api_error import ApiError
from axcore.serving.endpoint import DeviceQueue
from axcore.serving.form import parse_form

KIND = "multipart/form-data; boundary=xyz"


@given(st.binary(max_size=200), st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_form_is_read_as_a_client_writes_it(content, text):
    request = httpx2.Request(
        "POST", "http://a", data={"prompt": text, "g[]": ["a", text]}, files={"file": content}
    )
    found = parse_form(request.read(), request.headers["content-type"])
    assert found == {"prompt": text, "g[]": ["a", text], "file": content}


def part(head, content=b"a"):
    return b"--xyz\r\n" + head + b"\r\n\r\n" + content + b"\r\n"


NAMED = b'Content-Disposition: form-data; name="model"'


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", KIND, "its last boundary is missing"),
        (part(NAMED), KIND, "its last boundary is missing"),
        (part(NAMED) + b"--other--", KIND, "its last boundary is missing"),
        (part(NAMED) + b"--xyz--", "multipart/form-data", "names no boundary"),
        (part(b"Content-Type: text/plain") + b"--xyz--", KIND, "a part has no name"),
        (b"--xyz\r\nno end of the head\r\n--xyz--", KIND, "a part has no name"),
        (part(NAMED, b"\xff") + b"--xyz--", KIND, "is not UTF-8"),
        (part(NAMED) * 2 + b"--xyz--", KIND, "model comes twice"),
        (part(NAMED) * 70 + b"--xyz--", KIND, "more than 64 parts"),
    ],
)
def test_what_is_no_form_is_named(body, kind, text):
    with pytest.raises(ApiError, match=text) as raised:
        parse_form(body, kind)
    assert raised.value.status == 400


class Sums(Endpoint):
    """Adds one to numbers, several at once; fails over 13."""

    path = "/sums"
    max_batch = 4

    def __init__(self):
        self.batches, self.may_run = [], threading.Event()

    def read(self, fields):
        raise NotImplementedError

    def response(self, job, result, *, model):
        raise NotImplementedError

    def compute(self, state, jobs):
        assert self.may_run.wait(10)
        self.batches.append(list(jobs))
        if 13 in jobs:
            raise ValueError("thirteen")
        return [state + job for job in jobs]


def test_jobs_that_wait_share_a_call_and_those_of_clients_that_left_have_none():
    sums = Sums()

    async def run():
        queue = DeviceQueue(lambda: 1)
        tasks = [asyncio.create_task(queue.compute(sums, number)) for number in range(7)]
        await asyncio.sleep(0.05)
        assert (queue.num_calls, queue.num_waiting) == (1, 3)
        tasks[5].cancel()
        sums.may_run.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        queue.close()
        return found

    found = asyncio.run(run())
    assert found[:5] == [1, 2, 3, 4, 5]
    assert (type(found[5]), found[6]) == (asyncio.CancelledError, 7)
    assert sums.batches == [[0, 1, 2, 3], [4, 6]]


def test_a_call_that_fails_ends_its_own_requests_alone():
    sums = Sums()
    sums.may_run.set()

    async def run():
        queue = DeviceQueue(lambda: 1)
        both = (queue.compute(sums, 13), queue.compute(sums, 2))
        together = await asyncio.gather(*both, return_exceptions=True)
        return together, await queue.compute(sums, 3)

    together, alone = asyncio.run(run())
    assert [str(one) for one in together] == ["thirteen", "thirteen"]
    assert alone == 4
