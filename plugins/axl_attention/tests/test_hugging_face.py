"""Published models of this plugin's families: the same config, and tensors as many as published."""

import math

import pytest
from axl_attention.llama3_rope import Llama3RoPE
from axl_attention.models import gpt2, qwen3, qwen3_moe

from axcore.config import find_config
from axcore.errors import ConfigError
from axcore.interop import family_named, family_of

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
PUBLISHED = {
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
    (position,) = find_config(cfg, Llama3RoPE)
    assert (position.node.factor, position.node.original_length) == (32.0, 8192)
    assert family_of(cfg)[2]["rope_scaling"] == LLAMA_32_1B["rope_scaling"]
    shapes = family.bind(cfg).shapes
    assert len(shapes) == 146
    assert sum(map(math.prod, shapes.values())) == 1_235_814_400


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
