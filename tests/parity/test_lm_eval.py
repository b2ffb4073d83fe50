"""lm-eval, asking a server by `local-completions`, finds the likelihoods that the model has.

One task is made of the standard library's own text: which summary is that of which module. The
other asks a model that wants to end after whatever it has read.
"""

import importlib
import inspect
import json

import jax.numpy as jnp
import numpy as np
import pytest
from chat_tokenizer import write_chat_tokenizer
from known_answers import IDENTITY
from model_server import (
    LENGTH,
    chat_tokenizer,
    ending_engine,
    serving,
    small_engine,
    small_model,
)

from axcore.evaluation import EngineModel, MultipleChoice, SampleFile, evaluate_tasks
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
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
WORDS = ("a", "to be", "x" * 9, "or not", "zz", "é", "the end.")


def rows():
    """Yields questions: a module, and the beginnings of several summaries."""
    texts = [inspect.getdoc(importlib.import_module(name))[:40] for name in MODULES]
    for label, name in enumerate(MODULES):
        yield {"module": name, "choices": texts, "label": label}


def questions():
    """Yields 24 questions, of which each has answers of several lengths."""
    for number in range(24):
        choices = [WORDS[place % 7] for place in (number, number + 3, number * 4 + 1)]
        yield {"module": f"{number * number}", "choices": choices, "label": number % 3}


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A folder with the task; nothing is kept outside of it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    return lambda asked: write_task(tmp_path, asked)


def write_task(tmp_path, asked):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in asked))
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


def evaluate(engine, tokenizer_folder, task):
    """Returns what lm-eval finds by a server of an engine."""
    import lm_eval

    with serving(engine) as server:
        return lm_eval.simple_evaluate(
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


def test_scores_of_a_model_that_wants_to_end_are_those_of_axcore_evaluate(
    task, tokenizer_folder, tmp_path
):
    asked = MultipleChoice.Config(
        samples=SampleFile.Config(path=str(tmp_path / "rows.jsonl")),
        prompt="{module}:",
        answer="label",
    )
    with ending_engine(chat_tokenizer(tokenizer_folder)) as engine:
        found = evaluate(engine, tokenizer_folder, task(questions()))["results"]["summaries"]
        own = evaluate_tasks({"t": asked}, EngineModel(engine), IDENTITY, tmp_path / "found")["t"]
    assert own.num_samples == 24
    for theirs, ours in (("acc", "accuracy"), ("acc_norm", "accuracy_per_character")):
        assert found[f"{theirs},none"] == pytest.approx(own.metrics[ours].value)
        assert 0 < own.metrics[ours].value < 1


def test_likelihoods_are_those_of_the_plain_model(task, tokenizer_folder):
    tokenizer = chat_tokenizer(tokenizer_folder)
    model, state = small_model(tokenizer)
    with small_engine(tokenizer) as engine:
        found = evaluate(engine, tokenizer_folder, task(rows()))
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
