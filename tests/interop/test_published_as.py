"""A model that was read from a published one is written as that, and what is lost is named."""

import json

import jax
import jax.numpy as jnp
import pytest
from numpy_state import numpy_state

from axcore.config import evolve, update_config
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.interop.family import name_of
from axcore.models import llama2

SAID = {
    "model_type": "mistral",
    "sliding_window": None,
    "max_position_embeddings": 131_072,
    "bos_token_id": 5,
    "eos_token_id": [6, 7],
    "initializer_range": 0.01,
}
SAMPLING = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [6, 7]}
CARD = "---\nlicense: mit\nbase_model: some/base\n---\n# Small\n"


@pytest.fixture
def folder(tmp_path):
    """A Mistral without a window, which a Llama computes too, with what lies beside weights."""
    state = jax.tree.map(jnp.asarray, numpy_state(llama2("toy").build().param_specs()))
    to_hugging_face(tmp_path / "small", llama2("toy"), state)
    values = json.loads((tmp_path / "small" / "config.json").read_text())
    values = {n: v for n, v in values.items() if n not in ("attention_bias", "mlp_bias")}
    files = {
        "config.json": json.dumps(values | SAID),
        "generation_config.json": json.dumps(SAMPLING),
        "special_tokens_map.json": '{"eos_token": "</s>"}',
        "tokenizer.json": '{"model": {}}',
        "LICENSE.txt": "MIT",
        "README.md": CARD,
    }
    for name, text in files.items():
        (tmp_path / "small" / name).write_text(text)
    return tmp_path / "small"


def exported(folder, target, **options):
    read = from_hugging_face(folder)
    return to_hugging_face(target, read.config, read.state, **options)


def test_the_family_and_the_fields_that_were_read_are_written(folder, tmp_path):
    assert exported(folder, tmp_path / "back") == "mistral"
    values = json.loads((tmp_path / "back" / "config.json").read_text())
    assert values["architectures"] == ["MistralForCausalLM"]
    assert {name: values[name] for name in SAID} == SAID


def test_an_edited_model_that_is_no_more_of_its_family_is_one_that_fits_with_a_warning(
    folder, tmp_path
):
    read = from_hugging_face(folder)
    cfg = update_config(read.config, {"**.attention.linear.has_bias": True})
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    with pytest.warns(UserWarning, match="read as mistral, which it is no more; .* as qwen2"):
        assert to_hugging_face(tmp_path / "back", cfg, state) == "qwen2"


def test_settings_licence_and_tokenizer_are_written_again(folder, tmp_path):
    exported(folder, tmp_path / "back")
    for name in ("special_tokens_map.json", "tokenizer.json", "LICENSE.txt"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((tmp_path / "back" / "generation_config.json").read_text()) == SAMPLING
    card = (tmp_path / "back" / "README.md").read_text()
    assert "base_model: small\nlicense: mit\n" in card
    assert "some/base" not in card


def test_what_is_asked_for_goes_before_what_was_read(folder, tmp_path):
    exported(folder, tmp_path / "back", max_length=16, fields={"eos_token_id": 9})
    values = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (values["max_position_embeddings"], values["eos_token_id"]) == (16, 9)
    settings = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert settings == {**SAMPLING, "eos_token_id": 9}


def test_no_file_of_another_tokenizer_is_written_beside_one(folder, tmp_path):
    exported(folder, tmp_path / "other", files={"tokenizer.json": b"{}"})
    assert not (tmp_path / "other" / "special_tokens_map.json").exists()
    assert (tmp_path / "other" / "LICENSE.txt").exists()
    same = {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}
    exported(folder, tmp_path / "same", files=same)
    assert (tmp_path / "same" / "special_tokens_map.json").exists()


def test_files_that_the_export_lacks_are_named(folder, tmp_path):
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"weights again")
    read = from_hugging_face(folder)
    (folder / "LICENSE.txt").unlink()
    lacks = "lacks files that small had: LICENSE.txt, preprocessor_config.json$"
    with pytest.warns(UserWarning, match=lacks):
        to_hugging_face(tmp_path / "back", read.config, read.state)


def test_a_model_that_began_here_names_no_token_that_it_does_not_know(folder, tmp_path):
    read = from_hugging_face(folder)
    to_hugging_face(tmp_path / "new", evolve(read.config, published=None), read.state)
    values = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (values["bos_token_id"], values["eos_token_id"]) == (None, None)


def test_a_model_in_the_cache_of_the_hub_is_called_as_it_is_there(tmp_path):
    cached = tmp_path / "models--google--gemma-2-2b" / "snapshots" / "c5ebcd40"
    assert name_of(cached) == "google/gemma-2-2b"
    assert name_of(tmp_path / "small") == "small"
