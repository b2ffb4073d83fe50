"""Files of public benchmarks, in their publishers' layouts, are asked as lm-eval asks them."""

import gzip
import json

import pytest
import zstandard
from known_answers import IDENTITY, KnownAnswers

from axcore.errors import ConfigError
from axcore.evaluation import SampleFile, evaluate_tasks, find_tasks

HELLASWAG = {
    "activity_label": "Baking",
    "ctx_a": "A man stirs.",
    "ctx_b": "he [step] then",
    "endings": ["eats [x] it.", "sleeps."],
    "label": "1",
}
ARC = {
    "question": {
        "stem": "Which?",
        "choices": [{"text": "sun", "label": "A"}, {"text": "moon", "label": "B"}],
    },
    "answerKey": "B",
}
GSM = {"question": "2 and 2?", "answer": "It is <<2+2=4>>4.\n#### 4"}
MMLU = 'Which?,one,"two, or",three,four,C\nshort,row\n'


def asked(text, folder, model=None):
    model = model or KnownAnswers()
    result = next(iter(evaluate_tasks(find_tasks([text]), model, IDENTITY, folder).values()))
    return result, model.asked


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_hellaswag(tmp_path):
    file = written(tmp_path / "val.jsonl", HELLASWAG)
    _, questions = asked(f"hellaswag:{file}", tmp_path)
    assert questions[0].context == "Baking: A man stirs. He then"
    assert [one.continuation for one in questions] == [" eats it.", " sleeps."]


def test_arc(tmp_path):
    flat = {
        "question": "Which?",
        "choices": {"text": ["sun", "moon"], "label": ["1", "2"]},
        "answerKey": "2",
    }
    result, questions = asked(f"arc:{written(tmp_path / 'arc.jsonl', ARC, flat)}", tmp_path)
    assert {one.context for one in questions} == {"Question: Which?\nAnswer:"}
    assert result.metrics["accuracy"].value == 1  # longer texts are likelier here


def test_mmlu_and_a_row_that_is_cut_short(tmp_path):
    (tmp_path / "test.csv").write_text(MMLU)
    with pytest.warns(UserWarning, match=r"test.csv:2: it has 2 columns; expected 6"):
        _, questions = asked(f"mmlu:{tmp_path / 'test.csv'}", tmp_path)
    assert questions[0].context == "Which?\nA. one\nB. two, or\nC. three\nD. four\nAnswer:"
    assert [one.continuation for one in questions] == [" A", " B", " C", " D"]


def test_gsm8k_takes_the_last_number(tmp_path):
    file = written(tmp_path / "test.jsonl", GSM)
    model = KnownAnswers(texts={"Question: 2 and 2?\nAnswer:": " 2 and 2 are $4."})
    result, _ = asked(f"gsm8k:{file}", tmp_path, model)
    assert result.metrics["exact_match"].value == 1


def test_gsm8k_shows_how_examples_are_solved(tmp_path):
    file = written(tmp_path / "test.jsonl", GSM, {"question": "1 and 1?", "answer": "1+1.\n#### 2"})
    asked = "Question: 1 and 1?\nAnswer: 1+1.\n#### 2\n\nQuestion: 2 and 2?\nAnswer:"
    model = KnownAnswers(texts={asked: "4"})
    cfg = find_tasks([f"gsm8k:{file}"], ["gsm8k.num_shots=1", "gsm8k.limit=1"])
    evaluate_tasks(cfg, model, IDENTITY, tmp_path)
    assert [one.prompt for one in model.asked] == [asked]


def test_an_unknown_task_names_those_there_are():
    with pytest.raises(ConfigError, match=r"there is no task 'sums'.*arithmetic"):
        find_tasks(["sums"])


@pytest.mark.parametrize("suffix", ["jsonl.GZ", "JSONL", "json.gz", "csv.zst", "CSV"])
def test_samples_are_the_same_behind_compression_and_a_byte_order_mark(tmp_path, suffix):
    text = {"c": "\ufeffa,b\n1,2\n", "j": '\ufeff{"a": "1", "b": "2"}\n'}[suffix.lower()[0]]
    text = f"\ufeff[{text[1:]}]" if suffix.startswith("json.") else text
    kind = suffix.rpartition(".")[2].lower()
    compress = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(kind, bytes)
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(compress(text.encode()))
    assert [one.fields for one in SampleFile.Config(path=str(path)).build().samples()] == [
        {"a": "1", "b": "2"}
    ]
