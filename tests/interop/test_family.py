"""A model that was read from a published one is written as that, and what is lost is named."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from numpy_state import numpy_state

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import family_for, family_named, from_hugging_face, to_hugging_face
from axcore.interop.family import name_of
from axcore.models import llama2
from axcore.plugins import HuggingFaceFamily, plugin_host

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
    """A Mistral without a window, which a Llama computes too, with what is next to weights."""
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
    with pytest.warns(UserWarning, match="read as mistral, which it no longer is; .* as qwen2"):
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


CONFIGS = json.loads(Path(__file__).with_name("published_configs.json").read_text())
IGNORED = {
    "EleutherAI/gpt-neox-20b": "attention_probs_dropout_prob=0, hidden_dropout_prob=0",
    "HuggingFaceTB/SmolLM2-135M": "is_llama_config=True, rope_interleaved=False, "
    "transformers.js_config={'kv_cache_dtype': {'q4f16': 'float16', 'fp16': 'float16'}}",
    "Qwen/Qwen2.5-7B": "use_mrope=False",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": "qkv_bias=False, shared_expert_intermediate_size=0, "
    "use_qk_norm=True",
    "bigcode/starcoder2-3b": "activation_function='gelu', attention_softmax_in_fp32=True, "
    "layer_norm_epsilon=1e-05, scale_attention_softmax_in_fp32=True, scale_attn_weights=True",
    "bigcode/starcoder2-15b": "attention_softmax_in_fp32=True, layer_norm_epsilon=1e-05, "
    "scale_attention_softmax_in_fp32=True, scale_attn_weights=True",
    "distilbert/distilgpt2": "_num_labels=1",
    "google/gemma-2-9b": "sliding_window_size=4096",
    "google/gemma-2-27b": "_attn_implementation='eager', sliding_window_size=4096",
    "huggyllama/llama-7b": "max_sequence_length=2048",
    "mistralai/Mamba-Codestral-7B-v0.1": "intermediate_size=8192, "
    "time_step_init_scheme='random', time_step_scale=1.0",
    "openai/clip-vit-large-patch14": "text_config.pruned_heads={}, vision_config.pruned_heads={}",
    "openai-community/gpt2-medium": "n_special=0, predict_special_tokens=True",
    "openai-community/gpt2-xl": "output_past=True",
    "unsloth/Llama-3.2-1B-Instruct": "_attn_implementation_autoset=True, unsloth_fixed=True",
}
IGNORED |= {
    "CohereForAI/c4ai-command-r-v01": "model_max_length=131072",
    "CohereForAI/c4ai-command-r7b-12-2024": "layer_switch=4, use_embedding_sharing=True, "
    "use_parallel_embedding=True",
    "EleutherAI/gpt-j-6b": "gradient_checkpointing=False",
    "bigscience/bloom-560m": "attention_softmax_in_fp32=True, bias_dropout_fusion=True, "
    "masked_softmax_fusion=True, n_inner=None, offset_alibi=100, skip_bias_add=True, "
    "skip_bias_add_qkv=False, unk_token_id=0",
    "tiiuae/falcon-11B": "ff_factor=4",
    "ibm-granite/granite-4.0-h-micro": "init_method='mup'",
    "ibm-granite/granite-4.0-h-tiny": "init_method='mup'",
    "state-spaces/mamba-130m-hf": "d_inner=1536, d_model=768, fused_add_norm=True, n_layer=24, "
    "pad_vocab_size_multiple=8, rms_norm=True, ssm_cfg={}",
}
IGNORED["CohereForAI/c4ai-command-r-plus"] = IGNORED["CohereForAI/c4ai-command-r-v01"]
IGNORED["HuggingFaceTB/SmolLM2-360M"] = IGNORED["HuggingFaceTB/SmolLM2-135M"]
IGNORED["decapoda-research/llama-7b-hf"] = IGNORED["huggyllama/llama-7b"]
IGNORED["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"] = IGNORED["Qwen/Qwen2.5-7B"]
LLAMA = CONFIGS["meta-llama/Llama-2-7b-hf"]


def read(values, **how):
    """Returns the config of a model, and the warnings that it took to read it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cfg = family_for(values).read(values, **how)
    return cfg, [str(one.message) for one in said]


def test_there_is_a_published_model_of_every_family():
    families = {
        one.name: family_named(one.name) for one in plugin_host().records(HuggingFaceFamily)
    }
    read = [family_for(values) for values in CONFIGS.values()]
    assert [name for name, one in families.items() if not any(one is found for found in read)] == []


def test_without_a_plugin_that_reads_all_of_a_model_its_part_is_read(monkeypatch):
    values = CONFIGS["google/gemma-3-4b-it"]
    assert family_for(values) is family_named("gemma3_vision")
    records = plugin_host().records(HuggingFaceFamily)
    host = SimpleNamespace(records=lambda kind: [one for one in records if not one.instead_of])
    monkeypatch.setattr("axcore.interop.family.plugin_host", lambda: host)
    assert family_for(values).written_as == "gemma3_text"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_model_is_read_and_what_is_ignored_is_named_once(name):
    _, said = read(CONFIGS[name])
    assert [text.partition("they are ignored: ")[2] for text in said] == (
        [IGNORED[name]] if name in IGNORED else []
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qkv_bias", False),
        ("use_mrope", False),
        ("num_shared_experts", 0),
        ("residual_multiplier", 1.0),
        ("logit_cap", None),
        ("pruned_heads", {}),
        ("ffn_dropout_rate", 0.1),
        ("z_loss_coef", 1e-4),
        ("temperature", 0.6),
    ],
)
def test_a_field_at_its_neutral_value_or_of_training_makes_the_same_model(field, value):
    cfg, said = read({**LLAMA, field: value})
    assert cfg == read(LLAMA)[0]
    assert (field in "".join(said)) == (field != "temperature")  # which many files have


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qkv_bias", True),
        ("use_mrope", True),
        ("use_rope", False),
        ("num_shared_experts", 1),
        ("residual_multiplier", 0.5),
        ("residual_multiplier", True),
        ("logit_cap", 30.0),
        ("sliding_window", 4096),
        ("dual_chunk_attention_config", {"chunk_size": 8192}),
    ],
)
def test_a_field_that_could_matter_is_refused_until_that_is_allowed(field, value):
    with pytest.raises(ConfigError, match="fields that this family's map does not know") as caught:
        read({**LLAMA, field: value})
    assert caught.value.where == field
    assert "--allow-unknown-fields" in str(caught.value)
    cfg, said = read({**LLAMA, field: value}, allow_unknown_fields=True)
    assert cfg == read(LLAMA)[0]
    assert f"numbers might differ; they are ignored: {field}={value!r}" in said[0]
