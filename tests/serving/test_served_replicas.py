"""A server of replicas answers while one of them can, and says how many cannot."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import jax
import pytest
from held_engines import broken, busy
from model_server import SMALL, byte_tokenizer, serving, small_model

from axcore.inference import open_engine, replicas
from axcore.inference.adapters import EngineAdapter
from axcore.parallel import make_mesh


@pytest.mark.slow
def test_a_server_goes_on_without_a_replica_and_says_so(caplog):
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    model, state = small_model(byte_tokenizer())
    with (
        open_engine(model, state, byte_tokenizer(), SMALL, mesh=mesh) as engine,
        serving(engine) as server,
    ):
        expected = server.complete("abc", max_tokens=4)
        assert server.send("health").json == {"status": "ok"}
        assert "axcore_failed_replicas 0.0" in server.send("metrics").text
        broken(engine._engines[0])
        reply = server.send("v1/completions", {"prompt": "abc", "max_tokens": 4})
        assert (reply.status, reply.json["error"]["code"]) == (500, "engine_error")
        engine._engines[0].drain()
        assert server.complete("abc", max_tokens=4) == expected
        counts = {"replicas": 2, "failed_replicas": 1}
        assert server.send("health").json == {"status": "degraded", **counts}
        assert server.send("ready").json == {"status": "ready", "model": "small", **counts}
        text = server.send("metrics").text
        assert "axcore_failed_replicas 1.0" in text
        assert "axcore_lost_requests_total 1.0" in text
        assert "axcore_moved_requests_total 0.0" in text
        assert server.send("stats").json["num_slots"] == SMALL.max_num_seqs
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert "replica 0 of 2 answers no more" in "".join(said)


@pytest.mark.slow
def test_an_error_of_a_failed_replica_names_the_adapter_and_what_to_do(monkeypatch):
    """Some requests are lost with it; others find another adapter of the name at the next one."""
    monkeypatch.setattr(replicas, "by_preference", lambda *_: (0, 1))
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    model, state = small_model(byte_tokenizer())
    cfg = attrs.evolve(SMALL, num_adapters=1)
    with (
        open_engine(model, state, byte_tokenizer(), cfg, mesh=mesh) as engine,
        serving(engine) as server,
        ThreadPoolExecutor() as pool,
    ):
        server.served.adapters = ("poems",)
        first, last = engine._engines
        first.set_adapter("poems", EngineAdapter({}, "older"))
        last.set_adapter("poems", EngineAdapter({}, "newer"))
        asked = {"prompt": "abc", "model": "poems", "max_tokens": 4}
        with busy(first):
            sent = [
                pool.submit(server.send, "v1/completions", asked)
                for _ in range(cfg.max_num_seqs + 1)
            ]
            while first.stats().num_waiting <= cfg.max_num_seqs:
                time.sleep(0.01)
            broken(first)
        errors = [one.result(60).json["error"] for one in sent]
    assert {(one["code"], one["param"]) for one in errors} == {("engine_error", "model")}
    begins = "The engine could not finish the answer of 'poems': "
    assert {one["message"].removeprefix(begins) for one in errors} == {
        "EngineError. Ask again: other replicas answer.",
        "the adapter 'poems' was replaced while the request waited. Ask again.",
    }
