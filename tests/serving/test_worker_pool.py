"""Work that a request causes is bounded, takes its turn, and ends when its client goes."""

import asyncio
import threading
from pathlib import Path

import pytest
from chat_tokenizer import TEMPLATE, write_chat_tokenizer
from hostile_requests import HOSTILE_TEMPLATE, lark_rules, lark_words
from model_server import byte_tokenizer, chat_tokenizer

from axcore.data.chat.chat_template import ChatTemplate
from axcore.errors import DataError, RequestError
from axcore.inference.grammar import lark, plain_words
from axcore.serving import Limits
from axcore.serving.api_error import ApiError
from axcore.serving.request_body import Bodies
from axcore.serving.request_parser import parse_body
from axcore.serving.worker_pool import CLIENT, LONG_BODY, FairThreadPool, RequestWork

ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("hostile")
    return chat_tokenizer(write_chat_tokenizer(folder, HOSTILE_TEMPLATE + TEMPLATE))


@pytest.fixture
def work(tokenizer):
    limits = Limits(template_timeout_s=0.3, grammar_timeout_s=0.3, num_workers=1)
    made = RequestWork(tokenizer, limits, max_bytes=10_000)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        ("power", "takes more than 0.3 s of processor time"),
        ("loops", "takes more than 0.3 s of processor time"),
        ("wide", "needs more than 2 GiB of memory"),
    ],
)
def test_a_template_without_an_end_is_ended_and_the_next_one_is_rendered(work, bomb, why):
    async def both():
        with pytest.raises(DataError, match=why):
            await work.render(ASKED, {"bomb": bomb})
        return await work.render(ASKED, {"add_generation_prompt": True})

    assert asyncio.run(both()) == "<|turn|>user:hi<|end|><|turn|>assistant:"


def test_a_template_is_compiled_without_being_computed():
    template = ChatTemplate("{{ 10 ** (10 ** 8) }}{{ 'a' | center(9 ** 9) }}", {}, where="here")
    assert template.source.startswith("{{ 10")


def test_a_text_that_is_too_long_to_be_read_does_not_leave_the_process(work):
    long = [{"role": "user", "content": "a" * 20_000}]
    with pytest.raises(DataError, match=r"writes 20,.* bytes of this conversation; at most 10,000"):
        asyncio.run(work.render(long, {}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lark_words(40_000), "takes more than 0.3 s of processor time"),
        (lark_rules(5_000), "is nested too deep"),
        ("start: " + "x " * 600_000, "has 1,200,007 bytes; at most 1,048,576 are accepted"),
        ("start: x", 'unknown name: "x"'),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_in_plain_words(work, text, why):
    with pytest.raises(RequestError, match=why) as caught:
        asyncio.run(work.check_grammar(lark(text)))
    assert "backtrace" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    asyncio.run(work.check_grammar(lark('start: "a"')))


def test_a_grammar_that_was_compiled_is_remembered(work):
    grammar = lark('start: "a"')
    asyncio.run(work.check_grammar(grammar))
    for worker in work.grammars._idle:
        worker.close()
    asyncio.run(work.check_grammar(grammar))
    assert all(worker._process is None for worker in work.grammars._idle)


def test_a_panic_of_the_library_is_not_shown():
    assert plain_words("panic: assertion failed\n<backtrace>\n 0: <unknown>") == "it is too large"


@pytest.mark.slow
def test_work_for_a_client_that_leaves_is_killed_or_never_begun(work):
    async def leave():
        grammars = [lark(lark_words(40_000, seed)) for seed in range(8)]
        asking = [asyncio.create_task(work.check_grammar(grammar)) for grammar in grammars]
        while not work.grammars.pool.num_running:
            await asyncio.sleep(0.01)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert work.grammars.pool.num_waiting == 0
        while work.grammars.pool.num_running:
            await asyncio.sleep(0.01)
        await work.check_grammar(lark('start: "b"'))

    asyncio.run(asyncio.wait_for(leave(), 60))


def test_a_client_leaves_a_thread_to_others():
    async def order():
        pool, go, ran = FairThreadPool(2), threading.Event(), []

        async def ask(client, number):
            CLIENT.set(client)
            await pool.run(lambda: (client == "slow" and go.wait(30), ran.append((client, number))))

        slow = [asyncio.create_task(ask("slow", number)) for number in range(9)]
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.create_task(ask("other", 0)), 30)
        assert (pool.num_running, pool.num_waiting, ran) == (1, 8, [("other", 0)])
        go.set()
        await asyncio.gather(*slow)
        pool.close()
        return ran

    assert asyncio.run(order()) == [("other", 0), *(("slow", number) for number in range(9))]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * 4_000_000, "4,000,000 objects"),
        (b"[" * 300 + b"]" * 300, "too deep to be read: 300; at most 128"),
        (b"[" + b"1," * 1_200_000 + b"1]", "1,200,000 values"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a number has 5,000 characters"),
        (b'{"' + b"k" * 99_999 + b'": ["\\ud800"]}', "half of a surrogate pair"),
    ],
)
def test_a_body_that_is_slow_to_parse_is_refused_before(body, why):
    with pytest.raises(ApiError, match=why):
        parse_body(body)


LONG_BODIES = {
    "texts": b'{"prompt": "' + b"\\u4e2d\xc3\xa9" * 9000 + b'", "n": 1}',
    "numbers": b"[" + b"1, -0, 1e300, 0.1, " * 9000 + b"9" * 4000 + b"]",
    "values": b'[{"a": null, "b": [true, false, {}]}' + b", {}" * 30_000 + b"]",
    "a refusal": b"[" * 300_000,
    "half a pair": b'{"a": "' + b"a" * 70_000 + b'\\ud800"}',
    "no JSON": b"a" * 70_000,
}


def said_by(parse, body):
    """Returns what a body says, or the error of one that is refused."""
    try:
        return parse(body)
    except ApiError as error:
        return error.status, error.content


@pytest.mark.parametrize("name", LONG_BODIES)
def test_a_long_body_says_the_same_where_another_process_parses_it(work, name):
    body = LONG_BODIES[name]
    assert len(body) > LONG_BODY
    found = said_by(lambda body: asyncio.run(work.parse(body)), body)
    assert found == said_by(parse_body, body)
    assert len(work.bodies._idle) == 1  # it was asked


def test_the_room_for_long_bodies_is_shared_and_given_on():
    async def share():
        bodies = Bodies(Limits(max_bodies_bytes=100))
        await bodies.take("a", 60)  # more than half, but nothing else is hers
        waiting = [asyncio.create_task(bodies.take(*one)) for one in [("a", 1), ("b", 60)]]
        await bodies.take("b", 40)
        await asyncio.sleep(0)
        assert (bodies.num_bytes, [one.done() for one in waiting]) == (100, [False, False])
        bodies.leave("a", 60)
        await asyncio.wait_for(waiting[0], 30)
        assert not waiting[1].done()  # b has half
        bodies.leave("b", 40)
        await asyncio.wait_for(waiting[1], 30)
        assert bodies.num_bytes == 61

    asyncio.run(share())


def test_what_clients_send_is_within_the_limits_of_a_body():
    tool = {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(90)}}
    text = (
        '{"brackets": "'
        + "[{" * 300_000
        + '", "tools": '
        + str([tool] * 128).replace("'", '"')
        + "}"
    )
    assert len(parse_body(text.encode())["tools"]) == 128
    assert parse_body(b"[" + b"1," * 1_000_000 + b"1e300]")[-1] == 1e300


@pytest.mark.parametrize("letter", ["a", "\N{THAI CHARACTER KO KAI}", "\N{GRINNING FACE}", " "])
def test_a_token_stands_for_no_more_bytes_than_tokenizers_say(tokenizer, letter):
    for one in (tokenizer, byte_tokenizer()):
        text = letter * 64 + "<|end|>"
        most = one.max_token_bytes()
        assert len(text.encode()) <= most * len(one.encode_written(text))
