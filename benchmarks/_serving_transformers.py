"""A rival of `serving.py`: transformers, by its `generate` and `generate_batch`'s manager.

    python benchmarks/_serving_transformers.py FOLDER THREADS [--compile] [--device=cuda]

Threads are as many as cores; attention is PyTorch's own (its default). Without `--compile`, the
default cache, run eagerly: what `generate` does on a CPU. With it, the static cache and a compiled
forward pass, what its documentation recommends where a model answers many requests.
"""

import sys
import time
from typing import Any

import torch
import transformers
from _serving_load import (
    CONTEXT,
    LONG_PROMPT,
    PROMPT,
    Asked,
    Watch,
    answer_tasks,
    arrivals,
    prompts,
    served,
)
from transformers import CompileConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer

ROWS = 8


class Clock(BaseStreamer):
    """Remembers when tokens came, and the processor's time then."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.used: list[float] = []
        self.tokens: list[int] = []

    def put(self, value: Any) -> None:
        """Take the prompt, and then the tokens of a step."""
        self.at.append(time.perf_counter())
        self.used.append(time.process_time())
        self.tokens.append(int(value.reshape(-1)[0]))

    def end(self) -> None:
        """Do nothing."""


class Model:
    """A model that generates a given number of likeliest tokens."""

    def __init__(self, folder: str, threads: int, *, compiles: bool, device: str) -> None:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.device = device
        self.model.eval().to(device)
        self.vocab_size = self.model.config.vocab_size
        self.kept: dict[str, Any] = {}
        if compiles:
            compiling = CompileConfig(mode="default", dynamic=False)
            compiling._compile_all_devices = True
            self.kept = {"cache_implementation": "static", "compile_config": compiling}

    def configured(self, count: int, **kept: Any) -> GenerationConfig:
        """Return what asks for the likeliest tokens, `count` of them and no end."""
        return GenerationConfig(
            do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0, **kept
        )

    def generate(self, rows: list[list[int]], count: int, *, room: int | None = None) -> Clock:
        """Return when tokens came; the first entry is when the prompt was seen.

        Args:
            rows: Prompts of one length.
            count: How many tokens each gets.
            room: Tokens of the answer that a static cache has room for.
        """
        clock, kept = Clock(), self.kept
        if kept and room is not None:
            kept = {**kept, "max_length": None}
        with torch.inference_mode():
            self.model.generate(
                torch.tensor(rows, device=self.device),
                generation_config=self.configured(count, **kept),
                streamer=clock,
            )
        return clock


def main(folder: str, threads: str, *options: str) -> None:
    compiles = "--compile" in options
    device = "cuda" if "--device=cuda" in options else "cpu"
    model = Model(folder, int(threads), compiles=compiles, device=device)

    def decode(batch: int, count: int, seed: int) -> dict[str, Any]:
        """Take the time of each token after the first."""
        rows = prompts(batch, PROMPT, model.vocab_size, seed=seed)
        clock = model.generate(rows, count + 1)
        wall, used = (times[-1] - times[1] for times in (clock.at, clock.used))
        return {
            "ms": wall / count * 1e3,
            "processor_ms": used / count * 1e3,
            "tokens": clock.tokens[1:],
        }

    def first(seed: int) -> dict[str, Any]:
        """Take the time to the first token."""
        rows, watch = prompts(1, LONG_PROMPT, model.vocab_size, seed=seed), Watch()
        with watch.running():
            clock = model.generate(rows, 1)
        return {**watch.figures(), "tokens": clock.tokens[1:]}

    def one_by_one(count: int) -> dict[str, Any]:
        """Serve a load in the order in which it comes, one request after another."""
        asked, times = arrivals(model.vocab_size, count=count), []
        began = time.perf_counter()
        for one in asked:
            time.sleep(max(0.0, began + one.arrival_s - time.perf_counter()))
            times.append(model.generate([one.prompt], one.num_tokens).at[1:])
        return served(began, asked, times)

    def together(count: int) -> dict[str, Any]:
        """Serve a load by continuous batching, what `generate_batch` does."""
        return _together(model, arrivals(model.vocab_size, count=count))

    setting = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "attention": model.model.config._attn_implementation,
        "cache": "static, compiled by torch.compile" if compiles else "dynamic, eager: defaults",
        "room": CONTEXT,
    }
    answer_tasks(
        {"decode": decode, "first": first, "one_by_one": one_by_one, "together": together},
        packages=("torch", "transformers"),
        setting=setting,
    )


def _together(model: Model, asked: list[Asked]) -> dict[str, Any]:
    """Add requests as they come to the manager that `generate_batch` makes."""
    longest = max(one.num_tokens for one in asked)
    room = transformers.ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=512, max_requests_per_batch=16
    )
    manager = model.model.init_continuous_batching(
        generation_config=model.configured(longest), continuous_batching_config=room
    )
    manager.start()
    try:
        manager.add_request(asked[0].prompt, max_new_tokens=4, request_id="warm")
        _finished(manager, 1)
        began = time.perf_counter()
        for index, one in enumerate(asked):
            time.sleep(max(0.0, began + one.arrival_s - time.perf_counter()))
            manager.add_request(
                one.prompt,
                request_id=str(index),
                max_new_tokens=one.num_tokens,
                record_timestamps=True,
            )
        found = _finished(manager, len(asked))
    finally:
        manager.stop(block=True, timeout=5)
    return served(began, asked, [found[str(index)].timestamps for index in range(len(asked))])


def _finished(manager: Any, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while len(found) < count:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(result.error)
            found[result.request_id] = result
        if result is None and not manager.is_running():
            raise RuntimeError("the thread that generates has ended")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
