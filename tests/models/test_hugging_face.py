"""Families and their pretrained checkpoints: the same config, tensors of the same names and shapes.

The `config.json`s are those published with the weights, the counts of parameters theirs too.
"""

import math

import pytest

from axcore.interop import family_named, family_of
from axcore.interop.canonical import canonical
from axcore.models import llama2, llama3, mistral, mixtral, qwen2

OF_EVERY_FILE = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "use_cache": True,
}
LLAMA2_7B = {
    **OF_EVERY_FILE,
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "vocab_size": 32000,
}
LLAMA3_8B = {
    **LLAMA2_7B,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MISTRAL_7B = {
    **OF_EVERY_FILE,
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
MIXTRAL_8X7B = {
    **MISTRAL_7B,
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
MIXTRAL_8X22B = {
    **MIXTRAL_8X7B,
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "num_attention_heads": 48,
    "num_hidden_layers": 56,
}
QWEN2_05B = {
    **OF_EVERY_FILE,
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 131072,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2_7B = {
    **QWEN2_05B,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
QWEN2_72B = {
    **QWEN2_7B,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "max_window_layers": 80,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
}
PUBLISHED = {
    "llama2-7b": (llama2("7b"), LLAMA2_7B, 291, 6_738_415_616),
    "llama3-8b": (llama3("8b"), LLAMA3_8B, 291, 8_030_261_248),
    "mistral-7b": (mistral("7b"), MISTRAL_7B, 291, 7_241_732_096),
    "mixtral-8x7b": (mixtral("8x7b"), MIXTRAL_8X7B, 995, 46_702_792_704),
    "mixtral-8x22b": (mixtral("8x22b"), MIXTRAL_8X22B, 1_739, 140_620_634_112),
    "qwen2-0.5b": (qwen2("0.5b"), QWEN2_05B, 290, 494_032_768),
    "qwen2-7b": (qwen2("7b"), QWEN2_7B, 339, 7_615_616_512),
    "qwen2-72b": (qwen2("72b"), QWEN2_72B, 963, 72_706_203_648),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_is_that_of_the_catalogue(name):
    ours, published, _, _ = PUBLISHED[name]
    assert canonical(family_named(published["model_type"]).read(published)) == canonical(ours)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_written_says_what_was_published(name):
    ours, published, _, _ = PUBLISHED[name]
    family, _, fields = family_of(ours)
    assert family == published["model_type"]
    same = {key: value for key, value in fields.items() if key in published}
    assert same == {key: published[key] for key in same}
    assert len(same) >= 9


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_are_as_many_as_were_published(name):
    ours, published, num_tensors, num_params = PUBLISHED[name]
    shapes = family_named(published["model_type"]).bind(ours).shapes
    assert len(shapes) == num_tensors
    assert sum(map(math.prod, shapes.values())) == num_params


def layer_of_a_llama(fields, number):
    dim, hidden = fields["hidden_size"], fields["intermediate_size"]
    kv = dim // fields["num_attention_heads"] * fields["num_key_value_heads"]
    inner = {
        "input_layernorm.weight": (dim,),
        "mlp.down_proj.weight": (dim, hidden),
        "mlp.gate_proj.weight": (hidden, dim),
        "mlp.up_proj.weight": (hidden, dim),
        "post_attention_layernorm.weight": (dim,),
        "self_attn.k_proj.weight": (kv, dim),
        "self_attn.o_proj.weight": (dim, dim),
        "self_attn.q_proj.weight": (dim, dim),
        "self_attn.v_proj.weight": (kv, dim),
    }
    if fields["model_type"] == "qwen2":
        inner |= {
            f"self_attn.{name}_proj.bias": (size,)
            for name, size in zip("qkv", (dim, kv, kv), strict=True)
        }
    if fields["model_type"] == "mixtral":
        inner = {name: shape for name, shape in inner.items() if "mlp" not in name}
        inner["block_sparse_moe.gate.weight"] = (8, dim)
        for expert in range(8):
            for name, shape in (
                ("w1", (hidden, dim)),
                ("w2", (dim, hidden)),
                ("w3", (hidden, dim)),
            ):
                inner[f"block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    return {f"model.layers.{number}.{name}": shape for name, shape in inner.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_have_the_published_names_and_shapes(name):
    ours, fields, _, _ = PUBLISHED[name]
    table = (fields["vocab_size"], fields["hidden_size"])
    expected = {"model.embed_tokens.weight": table, "model.norm.weight": (fields["hidden_size"],)}
    if not fields["tie_word_embeddings"]:
        expected["lm_head.weight"] = table
    for number in range(fields["num_hidden_layers"]):
        expected |= layer_of_a_llama(fields, number)
    assert family_named(fields["model_type"]).bind(ours).shapes == expected
