"""Checkpoints of this plugin's families: the same config, and tensors as many as published."""

import json
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from axl_attention.models import (
    deepseek_v2,
    deepseek_v3,
    gemma,
    gemma2,
    gemma3,
    glm,
    glm4,
    gpt2,
    gpt_oss,
    kimi_k2,
    llama32,
    qwen3,
    qwen3_moe,
)
from axl_attention.rope_scaling import Llama3RoPE
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.config import find_config
from axcore.errors import ConfigError
from axcore.interop import (
    common_value,
    family_named,
    family_of,
    from_hugging_face,
    to_hugging_face,
)
from axcore.models import llama2, llama3, mistral, mixtral, qwen2

LLAMA_32_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3_8B = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_30B = {
    **QWEN3_8B,
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
GEMMA_7B = {
    "attention_bias": False,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}
GEMMA2_27B = {
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 128,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 4608,
    "intermediate_size": 36864,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 32,
    "num_hidden_layers": 46,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA3_1B = {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA3_4B = {
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
DEEPSEEK_V3 = {
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
KIMI_K2 = {
    **DEEPSEEK_V3,
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1,
    "model_type": "kimi_k2",
    "n_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "beta_fast": 1.0, "factor": 32.0},
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "topk_group": 1,
    "vocab_size": 163840,
}
DEEPSEEK_V2 = {
    **DEEPSEEK_V3,
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "rope_scaling": {
        **DEEPSEEK_V3["rope_scaling"],
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
    "routed_scaling_factor": 16.0,
    "scoring_func": "softmax",
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "vocab_size": 102400,
}
for name in ("num_nextn_predict_layers", "quantization_config"):
    del DEEPSEEK_V2[name]
GPT_OSS_20B = {
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GLM4_9B = {
    "attention_bias": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "max_position_embeddings": 32768,
    "model_type": "glm4",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
}
GLM_9B = {**GLM4_9B, "model_type": "glm", "rms_norm_eps": 1.5625e-07}
PUBLISHED = {
    "glm-4-9b": (glm("9b"), GLM_9B, 443, 9_399_951_360),
    "glm-4-9b-0414": (glm4("9b"), GLM4_9B, 523, 9_400_279_040),
    "gpt-oss-20b": (gpt_oss("20b"), GPT_OSS_20B, 411, 20_914_757_184),
    "deepseek-v2": (deepseek_v2("236b"), DEEPSEEK_V2, 29_102, 235_741_434_880),
    "deepseek-v3": (deepseek_v3("671b"), DEEPSEEK_V3, 45_395, 671_026_419_200),
    "gemma-7b": (gemma("7b"), GEMMA_7B, 254, 8_537_680_896),
    "gemma-2-27b": (gemma2("27b"), GEMMA2_27B, 508, 27_227_128_320),
    "gemma-3-1b": (gemma3("1b"), GEMMA3_1B, 340, 999_885_952),
    "gpt2": (gpt2("small"), GPT2, 148, 124_439_808),
    "qwen3-8b": (qwen3("8b"), QWEN3_8B, 399, 8_190_735_360),
    "qwen3-30b-a3b": (qwen3_moe("30b-a3b"), QWEN3_30B, 18_867, 30_532_122_624),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_is_that_of_the_catalogue(name):
    ours, published, num_tensors, num_params = PUBLISHED[name]
    family = family_named(published["model_type"])
    assert family.normal(family.read(published)) == family.normal(ours)
    assert family_of(ours)[0] == published["model_type"]
    shapes = family.bind(ours).shapes
    assert len(shapes) == num_tensors
    assert sum(map(math.prod, shapes.values())) == num_params


def test_llama_3_2_has_scaled_positions_and_the_embedding_for_a_head():
    family = family_named("llama")
    cfg = family.read(LLAMA_32_1B)
    assert family.normal(cfg) == family.normal(llama32("1b"))
    (position,) = find_config(cfg, Llama3RoPE)
    assert (position.node.factor, position.node.original_length) == (32.0, 8192)
    assert family_of(cfg)[2]["rope_scaling"] == LLAMA_32_1B["rope_scaling"]
    shapes = family.bind(cfg).shapes
    assert len(shapes) == 146
    assert sum(map(math.prod, shapes.values())) == 1_235_814_400


@pytest.mark.parametrize("family", [llama2, llama3, mistral, mixtral, qwen2])
def test_families_of_the_core_keep_their_names_beside_this_plugin(family):
    """Though other families here, GLM's among them, differ from a Llama by values alone."""
    name = {"llama2": "llama", "llama3": "llama"}.get(family.__name__, family.__name__)
    assert family_of(family("toy"))[0] == name


def test_scaled_positions_that_lack_a_field_are_an_error():
    scaling = {**LLAMA_32_1B["rope_scaling"]}
    del scaling["low_freq_factor"]
    with pytest.raises(ConfigError, match=r"lacks .'low_freq_factor'"):
        family_named("llama").read({**LLAMA_32_1B, "rope_scaling": scaling})


def test_gpt2_has_queries_keys_and_values_in_one_matrix_with_inputs_first():
    shapes = family_named("gpt2").bind(gpt2("small")).shapes
    assert shapes["transformer.h.11.attn.c_attn.weight"] == (768, 2304)
    assert shapes["transformer.h.11.attn.c_attn.bias"] == (2304,)
    assert shapes["transformer.h.11.mlp.c_fc.weight"] == (768, 3072)


def test_the_text_part_of_gemma_3_leaves_out_what_the_small_ones_have():
    family = family_named("gemma3")
    cfg = family.read(GEMMA3_4B)
    assert family.normal(cfg) == family.normal(gemma3("4b"))
    assert family_of(cfg)[0] == "gemma3_text"


@pytest.mark.slow
def test_kimi_k2_is_read_and_is_written_as_the_deepseek_v3_that_it_is():
    family = family_named("kimi_k2")
    cfg = family.read(KIMI_K2)
    assert family.normal(cfg) == family.normal(kimi_k2("1t"))
    assert family_of(cfg)[0] == "deepseek_v3"
    assert sum(map(math.prod, family.bind(cfg).shapes.values())) == 1_026_408_232_448


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topk_method": "greedy"}, "topk_method='greedy' with 8 groups"),
        ({"rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "mscale": 0.7}}, "mscale is 0.7"),
        ({"num_key_value_heads": 8}, "num_key_value_heads=8"),
    ],
)
def test_what_latent_attention_here_lacks_is_an_error(changes, words):
    with pytest.raises(ConfigError, match=words):
        family_named("deepseek_v3").read({**DEEPSEEK_V3, **changes})


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_gemma_scales_queries_as_heads_of_256_where_nothing_is_said(family):
    """So does transformers, whatever heads have."""
    model = {"gemma2": gemma2, "gemma3_text": gemma3}[family]("toy")
    fields = dict(family_named(family).write(model))
    del fields["query_pre_attn_scalar"]
    read = family_named(family).read(fields)
    assert common_value(read, "**.core.scale") == 1 / 16


def in_four_bits(tensor):
    """Return numbers of which two are in a byte, and exponents, for `[experts, in, out]`."""
    rows = np.ascontiguousarray(tensor.swapaxes(1, 2)).reshape(*tensor.shape[::2], -1, 32)
    scales = np.exp2(np.floor(np.log2(np.abs(rows).max(-1))) - 2)
    bits = (rows / scales[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    exponents = (np.log2(scales) + 127).astype(np.uint8)
    return bits[..., ::2] | bits[..., 1::2] << 4, exponents


@pytest.mark.slow
def test_experts_of_gpt_oss_are_read_from_four_bits(tmp_path):
    """They are near what they were before, and all other tensors equal."""
    cfg = gpt_oss("toy")
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "model", cfg, state)
    file, described = (tmp_path / "model" / name for name in ("model.safetensors", "config.json"))
    stored, exact = {}, load_file(file)
    for name, tensor in exact.items():
        if name.endswith("experts.down_proj"):
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = in_four_bits(tensor)
        else:
            stored[name] = tensor
    save_file(stored, file)
    fields = json.loads(described.read_text())
    described.write_text(json.dumps({**fields, "quantization_config": {"quant_method": "mxfp4"}}))
    with pytest.warns(UserWarning, match=r"quantized \(MXFP4\)"):
        read = from_hugging_face(tmp_path / "model")
    to_hugging_face(tmp_path / "again", read.config, read.state)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == exact.keys()
    for name, tensor in exact.items():
        off = np.abs(again[name] - tensor).max() / np.abs(tensor).max()
        assert 0.01 < off < 0.3 if name.endswith("experts.down_proj") else off == 0


LAYERS = {"of the Hub": "language_model.model.", "of transformers 5": "model.language_model."}


@pytest.mark.parametrize("prefix", LAYERS.values(), ids=LAYERS)
def test_gemma_3_is_read_from_beside_its_vision_tower(prefix, tmp_path):
    cfg = gemma3("toy")
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "whole", cfg, state)
    plain = from_hugging_face(tmp_path / "whole")
    file, described = (tmp_path / "whole" / name for name in ("model.safetensors", "config.json"))
    tensors = {n.replace("model.", prefix, 1): tensor for n, tensor in load_file(file).items()}
    save_file({**tensors, "vision_tower.patches.weight": np.ones(3, np.float32)}, file)
    text = json.loads(described.read_text())
    described.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    nested = from_hugging_face(tmp_path / "whole")
    assert nested.config == plain.config
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, nested.state, plain.state)))
