"""The first of `serving.py`: axcore's engine, which a server's requests go to.

    python benchmarks/_serving_axcore.py FOLDER [--split=N | --half [WEIGHTS]]

Threads are as many as cores, as XLA has them by itself. With `--split=N` the model is split over so
many devices, as by `axcore serve --target cpu-N --set "mesh={'model': N}"`; with `--half` keys and
values are kept in float16, as by `--modify 'kv_cache(dtype=float16)'`, and weights as
`--set engine.weights=WEIGHTS` says. Settings are the engine's
defaults, but for as many rows as requests of the load, and one more program of eight rows; what a
task needs is compiled in the turn that is not counted, and all programs before the load.
"""

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from _serving_load import (
    CONTEXT,
    LONG_PROMPT,
    NUM_REQUESTS,
    PROMPT,
    Asked,
    Watch,
    answer_tasks,
    arrivals,
    prompts,
    served,
)

import axcore as ax
from axcore.cli.main import collect_seldom
from axcore.config import config, evolve
from axcore.data import Tokenizer
from axcore.inference import CompletionStream, Engine, EngineConfig, Request, Sampling
from axcore.models import transformer
from axcore.modifiers import KVCache
from axcore.ops import current_policy
from axcore.parallel import make_mesh

LIKELIEST = Sampling(temperature=0.0)
SETTINGS = EngineConfig(
    max_num_seqs=NUM_REQUESTS, max_length=CONTEXT, batch_size_buckets=(1, 4, 8, 16, NUM_REQUESTS)
)
SLOTS = 64
HOST_PASSES = 6
"""How often all slots decode while the engine's own time is taken."""


class AnyTokens(Tokenizer):
    """As many tokens as a model has; each is written as a letter."""

    @config
    class Config(Tokenizer.Config):
        """Describes `AnyTokens`.

        Args:
            vocab_size: How many.
        """

        vocab_size: int

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.vocab_size, self.bos_id, self.eos_id, self.pad_id = cfg.vocab_size, None, 0, 0

    def encode_many(self, texts: Sequence[str]) -> list[Any]:
        """Return letters' numbers."""
        return [np.asarray([ord(letter) for letter in text]) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return a letter for each."""
        return "".join(chr(97 + token % 26) for token in tokens)


class Read:
    """Reads an answer in a thread of its own, and remembers when its tokens came."""

    def __init__(self, answer: CompletionStream) -> None:
        self.at: list[float] = []
        self.tokens: list[int] = []
        self._answer = answer
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def whole(self) -> "Read":
        """Wait for the end."""
        self._thread.join()
        if self._answer.error is not None:
            raise self._answer.error
        return self

    def _read(self) -> None:
        for piece in self._answer:
            self.at += [time.perf_counter()] * len(piece.tokens)
            self.tokens += [token.id for token in piece.tokens]


def request(prompt: list[int], num_tokens: int) -> Request:
    """Return a request for the likeliest tokens, without an end."""
    return Request(
        prompt=tuple(prompt), max_tokens=num_tokens, sampling=LIKELIEST, ignores_end=True
    )


def decode(engine: Engine, vocab_size: int, batch: int, count: int, seed: int) -> dict[str, Any]:
    """Take the time of each token after all rows have their first ones."""
    rows = prompts(batch, PROMPT, vocab_size, seed=seed)
    num_tokens = count + 2 * SETTINGS.num_decode_steps
    read = [Read(engine.submit(request(row, num_tokens))) for row in rows]
    while not all(one.at for one in read):
        time.sleep(1e-4)
    used, began = time.process_time(), max(one.at[0] for one in read)
    times = [at for one in read for at in one.whole().at if at > began]
    used = time.process_time() - used
    steps = len(times) / batch
    return {
        "ms": (max(times) - began) / steps * 1e3,
        "processor_ms": used / steps * 1e3,
        "tokens": read[0].tokens[: count + 1],
    }


def first(engine: Engine, vocab_size: int, seed: int) -> dict[str, Any]:
    """Take the time to the first token."""
    row, watch = prompts(1, LONG_PROMPT, vocab_size, seed=seed)[0], Watch()
    with watch.running():
        read = Read(engine.submit(request(row, 1))).whole()
    return {**watch.figures(), "tokens": read.tokens}


def together(engine: Engine, asked: list[Asked]) -> dict[str, Any]:
    """Serve a load, each request when it comes."""
    engine.warm_up()
    for one in asked[:4]:  # what is compiled has still to be run once
        engine.submit(request(one.prompt[::-1], 16)).result()
    before, began, read = engine.stats(), time.perf_counter(), []
    for one in asked:
        time.sleep(max(0.0, began + one.arrival_s - time.perf_counter()))
        read.append(Read(engine.submit(request(one.prompt, one.num_tokens))))
    found = served(began, asked, [one.whole().at for one in read])
    after = engine.stats()
    compiled = after.compilations_after_warm_up - before.compilations_after_warm_up
    return {**found, "compilations": compiled, "num_steps": after.num_steps - before.num_steps}


def one_by_one(engine: Engine, asked: list[Asked]) -> dict[str, Any]:
    """Serve a load in the order in which it comes, one request after another."""
    began, times = time.perf_counter(), []
    for one in asked:
        time.sleep(max(0.0, began + one.arrival_s - time.perf_counter()))
        times.append(Read(engine.submit(request(one.prompt, one.num_tokens))).whole().at)
    return served(began, asked, times)


def host(count: int) -> dict[str, Any]:
    """Take the engine's own time of a step while all of 64 slots decode, a token a step.

    The model is as small as a model can be: the host does not know what it computes. jax may run a
    short program on the thread that starts it, whose time then counts as the host's, so the
    fastest of several passes is what the engine takes itself.
    """
    cfg = transformer(vocab_size=64, dim=8, num_layers=1, num_heads=1, hidden_dim=8)
    model = cfg.build()
    settings = EngineConfig(
        max_num_seqs=SLOTS, max_length=512, batch_size_buckets=(SLOTS,), num_decode_steps=1
    )
    tokenizer = AnyTokens.Config(vocab_size=cfg.vocab_size).build()
    passes = []
    with Engine(model, model.init(0), tokenizer, settings) as engine:
        engine.warm_up()
        for _ in range(HOST_PASSES):
            before = engine.stats()
            answers = [
                engine.submit(request(row, count)) for row in prompts(SLOTS, 16, cfg.vocab_size)
            ]
            for answer in answers:
                answer.result()
            after = engine.stats()
            steps = after.num_steps - before.num_steps
            seconds = after.host_seconds_per_step * after.num_steps
            seconds -= before.host_seconds_per_step * before.num_steps
            passes.append(seconds / steps * 1e3)
    return {
        "host_ms_per_step": min(passes),
        "slowest_host_ms_per_step": max(passes),
        "num_passes": HOST_PASSES,
        "num_slots": SLOTS,
    }


def main(folder: str, way: str = "--split=1", weights: str = "none") -> None:
    collect_seldom()  # as `axcore serve` does
    is_half, devices = way == "--half", way.removeprefix("--split=")
    if not is_half:
        jax.config.update("jax_num_cpu_devices", int(devices))
    found = ax.from_hugging_face(folder)
    model, size = found.model, found.config.vocab_size
    if is_half:
        model = KVCache(dtype="float16").apply(found.config, current_policy().hardware).build()
    tokenizer = AnyTokens.Config(vocab_size=size).build()
    settings = evolve(SETTINGS, weights=None if weights == "none" else weights)
    setting = {
        "threads": os.cpu_count(),
        "devices": len(jax.devices()),
        "device_kind": jax.devices()[0].device_kind,
        "engine": repr(settings),
    }
    mesh = make_mesh({"model": -1}, jax.devices()) if len(jax.devices()) > 1 else None
    with Engine(model, found.state, tokenizer, settings, mesh=mesh) as engine:
        answer_tasks(
            {
                "decode": lambda **given: decode(engine, size, **given),
                "first": lambda **given: first(engine, size, **given),
                "together": lambda count: together(engine, arrivals(size, count=count)),
                "one_by_one": lambda count: one_by_one(engine, arrivals(size, count=count)),
                "host": lambda count: host(count),
            },
            packages=("jax", "jaxlib"),
            setting=setting,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
