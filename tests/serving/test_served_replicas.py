"""A server of replicas answers while one of them can, and says how many cannot."""

import logging

import jax
from held_engines import broken
from model_server import SMALL, byte_tokenizer, serving, small_model

from axcore.inference import open_engine
from axcore.parallel import make_mesh


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
        assert server.send("stats").json["num_slots"] == SMALL.max_rows
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert "replica 0 of 2 answers no more" in "".join(said)
