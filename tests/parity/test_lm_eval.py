"""lm-eval, asking a server by `local-completions`, finds the likelihoods that the model has.

The task is made of the standard library's own text: which summary is that of which module.
"""

import importlib
import inspect
import json

import jax.numpy as jnp
import numpy as np
import pytest
from chat_tokenizer import write_chat_tokenizer
from model_server import LENGTH, chat_tokenizer, serving, small_engine, small_model

from axcore.module import functional

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

MODULES = ("bisect", "copy", "heapq", "json", "queue", "random")
TASK = """
task: summaries
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{module}}}}:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list: [{{metric: acc}}]
"""


def rows():
    """Yields questions: a module, and the beginnings of several summaries."""
    texts = [inspect.getdoc(importlib.import_module(name))[:40] for name in MODULES]
    for label, name in enumerate(MODULES):
        yield {"module": name, "choices": texts, "label": label}


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A folder with the task; nothing is kept outside of it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "summaries.yaml").write_text(TASK.format(file=file))
    return folder


@pytest.fixture
def tokenizer_folder(tmp_path):
    folder = write_chat_tokenizer(tmp_path / "tokenizer")
    named = {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def likelihood(model, state, context, continuation):
    """Returns the log-probability of a continuation, and whether each token is the likeliest."""
    tokens = np.concatenate([context, continuation]).astype(np.int32)
    logits, _ = functional(model, state, jnp.asarray(tokens[None]), method="logits")
    logits = np.asarray(logits[0], np.float64)[len(context) - 1 : -1]
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    drawn = logprobs[np.arange(len(continuation)), continuation]
    return float(drawn.sum()), bool((drawn == logprobs.max(axis=1)).all())


def test_likelihoods_are_those_of_the_plain_model(task, tokenizer_folder):
    import lm_eval

    tokenizer = chat_tokenizer(tokenizer_folder)
    model, state = small_model(tokenizer)
    with small_engine(tokenizer) as engine, serving(engine) as server:
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": "small",
                "base_url": f"{server.url}v1/completions",
                "tokenizer": str(tokenizer_folder),
                "max_length": LENGTH,
            },
            tasks=["summaries"],
            task_manager=lm_eval.tasks.TaskManager(include_path=str(task), include_defaults=False),
            bootstrap_iters=0,
        )
    samples = found["samples"]["summaries"]
    assert len(samples) == len(MODULES)
    for sample in samples:
        context = tokenizer.encode(f"{sample['doc']['module']}:")
        for choice, ((logprob, is_greedy),) in zip(
            sample["doc"]["choices"], sample["resps"], strict=True
        ):
            expected, greedy = likelihood(model, state, context, tokenizer.encode(f" {choice}"))
            assert logprob == pytest.approx(expected, abs=1e-3)
            assert bool(is_greedy) == greedy
