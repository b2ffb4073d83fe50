"""What is served: a run as it was trained, or with another way to keep its keys and values."""

import json
import os
import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import axcore as ax
from axcore.cli.main import group
from axcore.data import HuggingFaceTokenizer
from axcore.errors import CheckpointError, ConfigError
from axcore.inference import EngineConfig, Request, Sampling
from axcore.runs import export_run, import_run, load_run, merge_models_and_runs, open_model
from axcore.serving import ServerConfig, start_engine
from axcore.testing import small_experiment, trainer_on

SMALL = ServerConfig(
    engine=EngineConfig(max_num_seqs=1, max_num_batched_tokens=16, num_decode_steps=1)
)
GREEDY = Sampling(temperature=0.0)


def answer(opened):
    with start_engine(opened, SMALL).engine as engine:
        request = Request(prompt=(100, 101, 102), max_tokens=8, sampling=GREEDY)
        caches = jax.tree.leaves(engine._programs.caches)
        return engine.submit(request).result(timeout=60).tokens, {one.dtype for one in caches}


@pytest.mark.slow
def test_a_change_of_caches_serves_the_same_weights(trained):
    plain = open_model(trained[0])
    narrow = open_model(trained[0], changes=("kv_cache(dtype=int8)",))
    (tokens, kept), (near, narrow_kept) = answer(plain), answer(narrow)
    assert np.dtype("int8") in narrow_kept - kept
    assert [one.id for one in near][:1] == [one.id for one in tokens][:1]


@pytest.mark.slow
def test_one_line_says_when_all_programs_are_compiled(trained, caplog):
    caplog.set_level("INFO", "axcore.serving")
    with start_engine(open_model(trained[0]), SMALL).engine:
        deadline = time.monotonic() + 60
        while not caplog.messages:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert re.fullmatch(r"all programs are compiled, after \d+ s", "".join(caplog.messages))


def test_changes_of_parameters_are_refused(trained):
    with pytest.raises(ConfigError, match="other parameters"):
        open_model(trained[0], changes=("lora",))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    settings = {"mesh": {"fsdp": 1}, "checkpoint.every_steps": 1, "**.peak": 0.1}
    cfg = ax.update_config(small_experiment(folder / "texts"), settings)
    trainer_on(cfg, 1).run(folder / "run", quiet=True)
    return folder / "run"


@pytest.mark.slow
def test_steps_of_a_run_are_averaged(run, tmp_path):
    words = ["merge", "linear", f"{run}@1", str(run), "--to", str(tmp_path / "mean")]
    ran = CliRunner().invoke(group, words)
    assert ran.exit_code == 0, ran.output
    found = import_run(tmp_path / "mean", tmp_path / "again").state
    first, last = (load_run(run, step=step).state for step in (1, 2))
    mean = jax.tree.map(lambda a, b: (np.asarray(a) + np.asarray(b)) / 2, first, last)
    assert not all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(last)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, mean)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_a_run_is_merged_with_a_published_model(run, tmp_path):
    export_run(load_run(run), tmp_path / "one")
    models = [str(run), str(tmp_path / "one")]
    merge_models_and_runs(models, tmp_path / "same", method="slerp", weights=[0.3, 0.7])
    name = "model.safetensors"
    from safetensors.numpy import load_file

    found, wanted = (load_file(tmp_path / at / name) for at in ("same", "one"))
    assert found.keys() == wanted.keys()
    for tensor in found:
        np.testing.assert_allclose(found[tensor], wanted[tensor], atol=1e-6)


def test_a_step_that_there_is_not_is_an_error_and_leaves_nothing(run, tmp_path):
    with pytest.raises(CheckpointError, match="7"):
        merge_models_and_runs([f"{run}@7", str(run)], tmp_path / "mean", method="linear")
    with pytest.raises(CheckpointError, match="runs/NAME@STEP"):
        merge_models_and_runs([f"{run}@last", str(run)], tmp_path / "mean", method="linear")
    assert list(tmp_path.iterdir()) == []


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
