"""A run directory holds its tokenizer, so that it is opened from any folder."""

import json
import os
from pathlib import Path

import pytest

import axcore as ax
from axcore.data import HuggingFaceTokenizer
from axcore.errors import CheckpointError
from axcore.testing import small_experiment, trainer_on


def write_tokenizer(path: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


WORDS = ["<unk>", "</s>", "The", "dog", "jumps", "over", "the", "lazy", "fox", ",", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a tokenizer, and a run that names both by relative paths."""
    folder = tmp_path_factory.mktemp("moved")
    before = Path.cwd()
    os.chdir(folder)
    try:
        write_tokenizer(Path("tokenizer.json"), WORDS)
        trainer().run("run", quiet=True)
    finally:
        os.chdir(before)
    return folder


def trainer() -> ax.Trainer:
    tokenizer = HuggingFaceTokenizer.Config(path="tokenizer.json", eos_token="</s>")
    changes = {"data.tokenizer": tokenizer, "data.source.folder": "texts", "mesh": {"fsdp": 1}}
    cfg = ax.update_config(small_experiment(Path("texts")), {**changes, "prompt": "The"})
    return trainer_on(cfg, 1)


@pytest.mark.slow
def test_a_run_is_opened_from_another_folder_after_its_tokenizer_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    expected = ax.load_run("run").generate("The", max_tokens=3)
    loss = ax.load_run("run").evaluate()
    monkeypatch.chdir(tmp_path)
    write_tokenizer(folder / "tokenizer.json", WORDS[::-1])
    run = ax.load_run(folder / "run")
    assert run.generate("The", max_tokens=3) == expected
    assert run.evaluate() == loss
    monkeypatch.chdir(folder)
    with pytest.raises(CheckpointError, match="is not the file that the run began with"):
        trainer().run("run", quiet=True)


@pytest.mark.slow
def test_a_changed_copy_of_the_tokenizer_is_refused(folder: Path) -> None:
    origin = json.loads((folder / "run" / "origin.json").read_text())
    copy = folder / "run" / "files" / origin["files"]["data.tokenizer.path"]["name"]
    before = copy.read_bytes()
    write_tokenizer(copy, WORDS[::-1])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not what it was"):
        ax.load_run(folder / "run")
    copy.unlink()
    with pytest.raises(CheckpointError, match="its digest is missing"):
        ax.load_run(folder / "run")
    copy.write_bytes(before)
    ax.load_run(folder / "run")
