"""One process of an engine; `test_engine_processes.py` starts it.

Arguments: address, number of processes, index, and a JSON object: sizes of the mesh, fields of the
engine's config, and what to do. Process 0 prints answers as JSON.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import jax
from parity_pairs import MODELS

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer
from axcore.distributed import TimeLimits, exit_process, join_processes
from axcore.errors import AxcoreError
from axcore.inference import (
    Draft,
    DraftModel,
    Engine,
    EngineConfig,
    NGramLookup,
    Request,
    Sampling,
)
from axcore.inference.grammar import Grammar
from axcore.parallel import make_mesh

TEXT = tuple(b"one text of many words, one text")
SPECULATION = {"ngram": NGramLookup(num_tokens=2), "draft": DraftModel(num_tokens=2)}


def requests(has_grammar):
    """Returns requests that reach every program."""
    greedy = Request(prompt=TEXT, max_tokens=9, sampling=Sampling(temperature=0), num_logprobs=2)
    drawn = evolve(greedy, sampling=Sampling(temperature=1.0, top_p=0.9), seed=7)
    found = [
        greedy,
        # Of one prompt, which is read once: its last logits are kept, and a page is copied.
        *(evolve(drawn, seed=seed) for seed in range(3)),
        evolve(drawn, prompt=TEXT[:11], sampling=Sampling(presence_penalty=1.0), seed=8),
        evolve(greedy, prompt=TEXT[3:20], prompt_logprobs=True),
    ]
    if has_grammar:
        found.append(evolve(greedy, grammar=Grammar("regex", "[0-9]{4}")))
    return found


def engine_of(task, seed=0):
    model = update_config(MODELS["mistral"](), task.get("model", {})).build()
    wanted = dict(task.get("engine", {}))
    wanted["speculation"] = SPECULATION.get(wanted.get("speculation"))
    cfg = EngineConfig(
        max_num_seqs=4, max_length=64, page_size=4, max_num_batched_tokens=16, **wanted
    )
    draft = None
    tokenizer = ByteTokenizer.Config().build()
    if isinstance(cfg.speculation, DraftModel):
        draft = Draft(model=model, state=model.init(1), tokenizer=tokenizer)
    state = jax.device_get(model.init(seed))
    return model, Engine(model, state, tokenizer, cfg, mesh=make_mesh(task["mesh"]), draft=draft)


def answers(engine, task):
    streams = engine.submit_all(requests(task.get("has_grammar", False)))
    found = [stream.result(120) for stream in streams]
    return [
        [
            one.text,
            [(token.id, token.logprob, token.top_logprobs) for token in one.tokens],
            one.finish_reason,
            one.prompt_logprobs,
        ]
        for one in found
    ]


def main():
    address, count, index, text = sys.argv[1:]
    task = json.loads(text)
    if int(count) > 1:
        limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=20)
        join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    try:
        model, engine = engine_of(task)
        with engine:
            if task.get("asks") == int(index):
                engine.submit(requests(False)[0])
            if task.get("dies") == int(index):
                os._exit(3)
            seen = [engine.together("answers", lambda: answers(engine, task))]
            if "replace" in task:
                engine.replace_weights(jax.device_get(model.init(task["replace"])))
                seen.append(engine.together("more", lambda: answers(engine, task)))
            stats = engine.stats()
    except AxcoreError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        exit_process(error.exit_code)
    print(json.dumps({"answers": seen, "steps": stats.num_steps}), flush=True)


if __name__ == "__main__":
    main()
