"""`axcore evaluate` finds the numbers that lm-eval finds, the same model behind both.

lm-eval makes questions, tokens, windows, metrics and standard errors by its own code.
"""

import json

import pytest
from known_answers import IDENTITY
from model_server import byte_tokenizer, small_engine

from axcore.evaluation import (
    EngineModel,
    MultipleChoice,
    Perplexity,
    SampleFile,
    WrittenAnswer,
    evaluate_tasks,
)
from axcore.evaluation.lm_eval_model import lm_eval_model

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

LETTERS = ("a", "é", "zz", "日本", "the end", "x" * 9)
CHOICES = [
    {
        "prompt": f"{'Say ' * (number % 40)}{number}:",
        "choices": [LETTERS[number % 6], LETTERS[(number + 2) % 6], LETTERS[(number * 5 + 1) % 6]],
        "answer": number % 3,
    }
    for number in range(30)
]
"""Some are longer than the model reads; some choices have more bytes than characters."""

TEXTS = [{"text": f"def f{number}(é):\n  return {number} " * number} for number in (1, 2, 9, 20)]
"""The last two are read in several windows."""

SUMS = [{"prompt": f"{'1 + ' * (9 * number)}{number} =", "answer": "x"} for number in range(8)]


@pytest.fixture(scope="module")
def asked():
    with small_engine(byte_tokenizer()) as engine:
        yield EngineModel(engine)


@pytest.fixture
def both(asked, tmp_path, monkeypatch):
    """Returns a function that evaluates rows by lm-eval and by axcore."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import lm_eval

    def run(rows, theirs, ours, **options):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = lm_eval.simple_evaluate(
            model=lm_eval_model(asked),
            tasks=[
                {
                    "task": "t",
                    "dataset_path": "json",
                    "dataset_kwargs": {"data_files": {"test": str(file)}},
                    "test_split": "test",
                    **theirs,
                }
            ],
            task_manager=lm_eval.tasks.TaskManager(include_defaults=False),
            bootstrap_iters=1,  # else there are no standard errors, those of means either
            torch_random_seed=None,
            **options,
        )
        cfg = ours(str(file))
        own = evaluate_tasks({"t": cfg}, asked, IDENTITY, tmp_path / "found", restarts=True)
        return found["results"]["t"], own["t"], found["samples"]["t"]

    return run


def metrics(*names):
    return [{"metric": name} for name in names]


def same(theirs, metric, own, filtered="none"):
    assert own.value == pytest.approx(theirs[f"{metric},{filtered}"], rel=1e-5)
    error = theirs[f"{metric}_stderr,{filtered}"]
    if error != "N/A":
        assert own.standard_error == pytest.approx(error, rel=1e-5)
    return error


def file_of(path):
    return SampleFile.Config(path=path)


def test_multiple_choice(both):
    theirs = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": metrics("acc", "acc_norm", "acc_bytes"),
    }
    found, own, samples = both(
        CHOICES, theirs, lambda path: MultipleChoice.Config(samples=file_of(path))
    )
    assert len(samples) == own.num_samples == len(CHOICES)
    assert own.num_cut > 0
    for theirs, ours in (
        ("acc", "accuracy"),
        ("acc_norm", "accuracy_per_character"),
        ("acc_bytes", "accuracy_per_byte"),
    ):
        assert same(found, theirs, own.metrics[ours]) > 0
    values = [own.metrics[f"accuracy_per_{one}"].value for one in ("character", "byte")]
    assert values[0] != values[1], "rows that distinguish them"


def test_perplexity(both):
    theirs = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": metrics("word_perplexity", "byte_perplexity", "bits_per_byte"),
    }
    found, own, _ = both(TEXTS, theirs, lambda path: Perplexity.Config(samples=file_of(path)))
    for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        same(found, name, own.metrics[name])


def test_exact_match(both, asked):
    first = lm_eval_model(asked).generate_until([_Request(SUMS[0]["prompt"])])[0].strip()
    rows = [{**row, "answer": first[:1] or "x"} for row in SUMS]
    theirs = {
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False},
        "filter_list": [
            {
                "name": "first",
                "filter": [
                    {"function": "regex", "regex_pattern": r"(\S)"},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": metrics("exact_match"),
    }
    found, own, samples = both(
        rows,
        theirs,
        lambda path: WrittenAnswer.Config(
            samples=file_of(path), max_tokens=8, stop=("\n",), pattern=r"(\S)"
        ),
    )
    assert own.num_cut > 0
    assert len({sample["resps"][0][0] for sample in samples}) > 1
    assert own.metrics["exact_match"].value > 0
    assert same(found, "exact_match", own.metrics["exact_match"], "first") > 0


class _Request:
    """What lm-eval calls an instance."""

    def __init__(self, context):
        self.args = (context, {"until": ["\n"], "max_gen_toks": 8})
