"""No pretrained checkpoint of a family is refused over a field that changes nothing.

`published_configs.json` holds `config.json`s as they are on the Hub, by the names of models.
"""

import json
import warnings
from pathlib import Path

import pytest

from axcore.errors import ConfigError
from axcore.interop import family_named
from axcore.plugins import HuggingFaceFamily, plugin_host

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
    "openai-community/gpt2-medium": "n_special=0, predict_special_tokens=True",
    "openai-community/gpt2-xl": "output_past=True",
    "unsloth/Llama-3.2-1B-Instruct": "_attn_implementation_autoset=True, unsloth_fixed=True",
}
IGNORED["HuggingFaceTB/SmolLM2-360M"] = IGNORED["HuggingFaceTB/SmolLM2-135M"]
IGNORED["decapoda-research/llama-7b-hf"] = IGNORED["huggyllama/llama-7b"]
IGNORED["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"] = IGNORED["Qwen/Qwen2.5-7B"]
LLAMA = CONFIGS["meta-llama/Llama-2-7b-hf"]


def read(values, **how):
    """Returns the config of a model, and the warnings that it took to read it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cfg = family_named(values["model_type"]).read(values, **how)
    return cfg, [str(one.message) for one in said]


def test_there_is_a_published_model_of_every_family():
    families = {record.name for record in plugin_host().records(HuggingFaceFamily)}
    assert families == {values["model_type"] for values in CONFIGS.values()}


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
