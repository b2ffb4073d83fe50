"""Replicas on a mesh answer as one engine does, each on devices of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from held_engines import held
from next_letter import NextLetter, letter_chain

from axcore.config import evolve
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import (
    Draft,
    DraftModel,
    Draining,
    Engine,
    EngineConfig,
    QueueFull,
    Replicas,
    Request,
    RequestError,
    Sampling,
    open_engine,
)
from axcore.inference.adapters import EngineAdapter
from axcore.inference.grammar import GrammarCompiler, regex
from axcore.inference.programs import CompiledPrograms
from axcore.parallel import make_mesh

TOKENIZER = ByteTokenizer.Config().build()
MODEL = NextLetter.Config(vocab_size=TOKENIZER.vocab_size).build()
CFG = EngineConfig(
    max_num_seqs=2,
    max_length=32,
    page_size=4,
    num_decode_steps=1,
    max_num_batched_tokens=18,
    batch_size_buckets=(2,),
)


def chain(text):
    return letter_chain(text, TOKENIZER.vocab_size)


def request(text, max_tokens=6):
    return Request(
        prompt=tuple(text.encode()), max_tokens=max_tokens, sampling=Sampling(temperature=0)
    )


@pytest.fixture
def replicas():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    with open_engine(MODEL, chain("abcd"), TOKENIZER, CFG, mesh=mesh) as found:
        assert isinstance(found, Replicas)
        yield found


def test_an_engine_follows_its_weights_to_their_device():
    state = jax.device_put(chain("abcd"), jax.devices()[3])
    with Engine(MODEL, state, TOKENIZER, CFG) as engine:
        assert engine.submit(request("a")).result(60).text == "bcdabc"
        leaves = jax.tree.leaves(engine._programs.caches)
        assert {device for leaf in leaves for device in leaf.devices()} <= {jax.devices()[3]}


def test_replicas_share_the_work_and_answer_as_one_engine(replicas):
    texts = ["a", "b", "c", "d"]
    with held(replicas):
        answers = [replicas.submit(request(text)) for text in texts]
    found = [answer.result(60).text for answer in answers]
    with Engine(MODEL, chain("abcd"), TOKENIZER, CFG) as engine:
        assert found == [engine.submit(request(text)).result(60).text for text in texts]
    parts = replicas.replica_stats()
    assert [one.num_prompt_tokens for one in parts] == [2, 2]
    total = replicas.stats()
    assert (total.num_slots, total.num_sampled_tokens) == (
        4,
        sum(one.num_sampled_tokens for one in parts),
    )


def test_prompts_that_begin_alike_go_to_one_replica(replicas):
    for _ in range(3):
        replicas.submit(request("abcdabcda")).result(60)
    assert [one.num_prompt_tokens for one in replicas.replica_stats()] == [27, 0]
    assert replicas.stats().num_cached_prompt_tokens == 16


def test_a_cancelled_answer_ends_at_its_replica_and_frees_its_room(replicas):
    with held(replicas):
        answers = [replicas.submit(request(text, 30)) for text in "abc"]
        answers[1].cancel()
    found = [answer.result(60) for answer in answers]
    assert [one.finish_reason for one in found] == ["length", "cancelled", "length"]
    assert (found[1].tokens, len(found[2].tokens)) == ((), 30)
    replicas.drain()
    stats = replicas.stats()
    assert (stats.num_waiting, stats.num_running, stats.pages_used) == (0, 0, 0)
    assert stats.num_sampled_tokens == 60


def test_requests_are_refused_where_every_queue_is_full():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    cfg = evolve(CFG, max_queue=2)
    with open_engine(MODEL, chain("abcd"), TOKENIZER, cfg, mesh=mesh) as found:
        with held(found):
            answers = [found.submit(request(text)) for text in "abcd"]
            assert [one.num_waiting for one in found.replica_stats()] == [2, 2]
            with pytest.raises(QueueFull, match="2 requests wait already"):
                found.submit(request("a"))
        assert [answer.result(60).text[:1] for answer in answers] == [*"bcda"]


def test_replicas_take_requests_that_come_together_all_or_none():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    with open_engine(MODEL, chain("abcd"), TOKENIZER, evolve(CFG, max_queue=2), mesh=mesh) as found:
        with held(found):
            with pytest.raises(RequestError, match="together more than 32") as caught:
                found.submit_all([request("a"), request("a", 32)])
            assert caught.value.where == "requests[1].max_tokens"
            assert found.stats().num_waiting == 0
            with pytest.raises(QueueFull):
                found.submit_all([request(text) for text in "abcda"])
        found.drain()
        assert (found.stats().num_running, found.stats().pages_used) == (0, 0)
    with open_engine(MODEL, chain("abcd"), TOKENIZER, CFG, mesh=mesh) as found:
        answers = found.submit_all([request(text) for text in "abcd"])
        assert [answer.result(60).text[:1] for answer in answers] == [*"bcda"]


def test_what_can_never_be_answered_is_refused_by_replicas_as_by_an_engine(replicas):
    with pytest.raises(RequestError, match="together more than 32, the longest text") as caught:
        replicas.submit(request("a", 32))
    assert caught.value.hint == "shorten the prompt, or ask for fewer tokens"
    with pytest.raises(RequestError, match="there is no adapter 'one'") as caught:
        replicas.submit(evolve(request("a"), adapter="one"))
    assert caught.value.where == "adapter"
    with pytest.raises(ConfigError, match="room for 0 adapters, and all are in use") as caught:
        replicas._engines[0].set_adapter("one", EngineAdapter({}, "digest"))
    assert caught.value.where == "num_adapters"
    assert replicas.stats().num_prompt_tokens == 0


def test_all_replicas_take_new_weights_and_refuse_others(replicas):
    replicas.replace_weights(chain("dcba"))
    answers = [replicas.submit(request("d")) for _ in range(4)]
    assert {answer.result(60).text for answer in answers} == {"cbadcb"}
    with pytest.raises(ConfigError, match="differ in type"):
        replicas.replace_weights({"table": chain("abcd")["table"].astype(jnp.float16)})
    with pytest.raises(ConfigError, match="the arrays are not those of the model") as caught:
        replicas.replace_weights({"other": chain("abcd")["table"]})
    assert caught.value.hint == "give a state of the same model"
    assert replicas.submit(request("d")).result(60).text == "cbadcb"


def test_a_replica_that_cannot_take_new_weights_fails_and_the_others_answer_by_them(
    replicas, monkeypatch
):
    first, last = replicas._engines

    def full(state, **options):
        raise MemoryError("no room on the device")

    monkeypatch.setattr(last._programs.weights._conversion, "arrays", full)
    replicas.replace_weights(chain("dcba"))
    assert "no room on the device" in last.error.what
    assert [replicas.submit(request("d")).result(60).text for _ in range(2)] == ["cbadcb"] * 2
    assert first.error is None


def test_no_request_waits_for_the_grammar_of_another(replicas, monkeypatch):
    pytest.importorskip("llguidance")
    is_asked, go_on = threading.Event(), threading.Event()
    compiled = GrammarCompiler._compile

    def compile_slowly(self, grammar):
        if grammar == regex("[ab]+"):
            is_asked.set()
            assert go_on.wait(60)
        return compiled(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_slowly)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(replicas.submit, evolve(request("a"), grammar=regex("[ab]+")))
        assert is_asked.wait(60)
        assert replicas.submit(request("a")).result(60).text == "bcdabc"
        other = replicas.submit(evolve(request("a"), grammar=regex("[bx]+")))
        assert other.result(60).text.startswith("b")
        assert not slow.done()
        go_on.set()
        assert slow.result(60).result(60).text.startswith("b")


@pytest.mark.slow
def test_replicas_compile_their_programs_at_the_same_time(replicas, monkeypatch):
    """Each waits, before its first program, until the other one has come to its own."""
    both, prepare = threading.Barrier(2), CompiledPrograms.prepare
    come: set[int] = set()

    def prepare_together(self, key):
        if id(self) not in come:
            come.add(id(self))
            both.wait(60)
        return prepare(self, key)

    monkeypatch.setattr(CompiledPrograms, "prepare", prepare_together)
    said = []
    replicas.warm_up(lambda *one: said.append(one))
    assert [done for done, _, _ in said] == list(range(1, said[0][1] + 1))
    assert len(come) == 2


def test_replicas_finish_what_they_have_and_take_no_more(replicas):
    answers = [replicas.submit(request("a")) for _ in range(4)]
    replicas.drain()
    assert all(answer.is_finished for answer in answers)
    with pytest.raises(Draining, match="take no new requests"):
        replicas.submit(request("a"))


@pytest.mark.slow
def test_each_replica_guesses_by_a_draft_of_its_own():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    draft = Draft(model=MODEL, state=chain("abdc"), tokenizer=TOKENIZER)
    cfg = evolve(CFG, speculation=DraftModel(num_tokens=3))
    with open_engine(MODEL, chain("abcd"), TOKENIZER, cfg, mesh=mesh, draft=draft) as found:
        with held(found):
            answers = [found.submit(request(text, 13)) for text in "abcd"]
        assert [answer.result(60).text[:6] for answer in answers] == [
            "bcdabc",
            "cdabcd",
            "dabcda",
            "abcdab",
        ]
        parts = found.replica_stats()
        trees = [jax.tree.leaves(one._programs.weights.value) for one in found._engines]
    assert all(0 < one.num_accepted_draft_tokens < one.num_draft_tokens for one in parts)
    devices = [{device for leaf in leaves for device in leaf.devices()} for leaves in trees]
    assert devices == [{device} for device in jax.devices()[1:3]]


def test_a_draft_without_speculation_is_refused_by_replicas_as_by_an_engine():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    draft = Draft(model=MODEL, state=chain("abdc"), tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="there is a draft model, and speculation is None"):
        open_engine(MODEL, chain("abcd"), TOKENIZER, CFG, mesh=mesh, draft=draft)
