"""`axcore convert runs/NAME gguf:FILE`: a run as a file for llama.cpp."""

import jax
import numpy as np
import pytest
from commands import call
from gguf_models import metadata_in, tensors_in, types_in

from axcore.errors import ConfigError
from axcore.modifiers import LoRA
from axcore.plugins import Hardware
from axcore.runs import export_gguf, load_run
from axcore.testing import small_experiment, trainer_on


def test_a_run_becomes_a_file_with_its_weights_and_its_tokenizer(trained, tmp_path):
    folder, _ = trained
    told = call("convert", folder, f"gguf:{tmp_path / 'model.gguf'}", "--dtype", "float32")
    assert "as a model of type llama for llama.cpp" in told
    run = load_run(folder)
    state = run.state["decoder"]
    found, metadata = tensors_in(tmp_path / "model.gguf"), metadata_in(tmp_path / "model.gguf")
    ours = np.asarray(state["embedding"]["weight"], np.float32)
    np.testing.assert_array_equal(found["token_embd.weight"], ours)
    assert metadata["llama.context_length"] == run.config.data.seq_len
    assert len(metadata["tokenizer.ggml.tokens"]) == len(ours)


def test_numbers_of_eight_bits_are_for_these_files_alone(trained, tmp_path):
    folder, _ = trained
    call("convert", folder, f"gguf:{tmp_path / 'model.gguf'}", "--dtype", "q8_0")
    assert types_in(tmp_path / "model.gguf")["token_embd.weight"] == "Q8_0"
    with pytest.raises(ConfigError, match="q8_0 is a type of GGUF files"):
        call("convert", folder, f"hf:{tmp_path / 'hf'}", "--dtype", "q8_0")


def test_a_file_is_read_as_the_run_that_it_was_written_from(trained, tmp_path):
    folder, _ = trained
    file = tmp_path / "model.gguf"
    call("convert", folder, f"gguf:{file}", "--dtype", "float32")
    told = call("convert", f"gguf:{file}", tmp_path / "again", "--dtype", "float32")
    assert f"contains the model of {file}" in told
    first, again = load_run(folder), load_run(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, again.state, first.state)
    texts = [
        run.trainer.data.tokenizer.encode_prompt("It's é\n 2024").tolist() for run in (first, again)
    ]
    assert texts[0] == texts[1]


def test_text_is_generated_from_a_file(trained, tmp_path):
    folder, _ = trained
    file = tmp_path / "model.gguf"
    call("convert", folder, f"gguf:{file}", "--dtype", "float32")
    how = ("--prompt", "The ", "--max-tokens", "12", "--temperature", "0")
    assert call("generate", file, *how) == call("generate", folder, *how)


def test_a_file_is_no_pretrained_checkpoint_twice(tmp_path):
    with pytest.raises(ConfigError, match="one names a pretrained checkpoint and the other a run"):
        call("convert", "gguf:model.gguf", f"hf:{tmp_path}")


def test_files_are_never_several(trained, tmp_path):
    with pytest.raises(ConfigError, match="--max-shard-size 5GB is for hf:FOLDER"):
        call("convert", trained[0], f"gguf:{tmp_path / 'one'}", "--max-shard-size", "5GB")


@pytest.mark.slow
def test_adapters_are_written_only_merged(tmp_path):
    cfg = small_experiment(tmp_path / "texts")
    cfg = LoRA(rank=2).apply(cfg, Hardware.parse("cpu-1"))
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    run = load_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="the run trains adapters") as error:
        export_gguf(run, tmp_path / "model.gguf")
    assert "--merged" in str(error.value)
    export_gguf(run, tmp_path / "model.gguf", merged=True)
    names = tensors_in(tmp_path / "model.gguf")
    assert "blk.0.attn_q.weight" in names
    assert not [name for name in names if "lora" in name]
