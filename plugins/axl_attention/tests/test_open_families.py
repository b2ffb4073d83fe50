"""Families that came later: parameters as published, and published configs as the catalogue's."""

import json
import math
import re

import numpy as np
import pytest
from axl_attention.models import (
    glm45,
    gpt_neox,
    granite,
    mamba2,
    olmo2,
    olmo3,
    phi3,
    smollm3,
    starcoder2,
)
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
from axcore.layers import TransformerLayer
from axcore.module import count_params

# fmt: off
LONG_FACTORS = [
    1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649,
    2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845,
    5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158,
    11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105,
    25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71,
    32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
]
# fmt: on
"""Of microsoft/Phi-4-mini-instruct."""

LLAMA_LIKE = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_cache": True,
}
OLMO2_7B = {
    **LLAMA_LIKE,
    "architectures": ["Olmo2ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "model_type": "olmo2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rope_theta": 500000,
    "vocab_size": 100352,
}
GRANITE_8B = {
    **LLAMA_LIKE,
    "architectures": ["GraniteForCausalLM"],
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12.0,
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "logits_scaling": 16.0,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_theta": 5000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49155,
}

SMOLLM3_3B = {
    **LLAMA_LIKE,
    "architectures": ["SmolLM3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_window_layers": 28,
    "mlp_bias": False,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pretraining_tp": 2,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 128256,
}

PHI_3_MINI = {
    **LLAMA_LIKE,
    "architectures": ["Phi3ForCausalLM"],
    "embd_pdrop": 0.0,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "vocab_size": 32064,
}

PHI_4_MINI = {
    **PHI_3_MINI,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {
        "long_factor": LONG_FACTORS,
        "short_factor": [1.0] * 48,
        "type": "longrope",
    },
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}

GLM_45_AIR = {
    **LLAMA_LIKE,
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "eos_token_id": [151329, 151336, 151338],
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "use_qk_norm": False,
    "vocab_size": 151552,
}

PYTHIA_70M = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}

STARCODER2_3B = {
    "architectures": ["Starcoder2ForCausalLM"],
    "attention_dropout": 0.1,
    "bos_token_id": 0,
    "embedding_dropout": 0.1,
    "eos_token_id": 0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 3072,
    "initializer_range": 0.018042,
    "intermediate_size": 12288,
    "max_position_embeddings": 16384,
    "mlp_type": "default",
    "model_type": "starcoder2",
    "norm_epsilon": 1e-05,
    "norm_type": "layer_norm",
    "num_attention_heads": 24,
    "num_hidden_layers": 30,
    "num_key_value_heads": 2,
    "residual_dropout": 0.1,
    "rope_theta": 999999.4420358813,
    "sliding_window": 4096,
    "use_bias": True,
    "use_cache": True,
    "vocab_size": 49152,
}

OLMO3_7B = {
    **OLMO2_7B,
    "architectures": ["Olmo3ForCausalLM"],
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "max_position_embeddings": 65536,
    "model_type": "olmo3",
    "rope_scaling": {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    },
    "sliding_window": 4096,
    "vocab_size": 100278,
}

CODESTRAL_7B = {
    "architectures": ["Mamba2ForCausalLM"],
    "bos_token_id": 0,
    "chunk_size": 256,
    "conv_kernel": 4,
    "eos_token_id": 0,
    "expand": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.1,
    "layer_norm_epsilon": 1e-05,
    "model_type": "mamba2",
    "n_groups": 8,
    "norm_before_gate": True,
    "num_heads": 128,
    "num_hidden_layers": 64,
    "pad_token_id": 0,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "rms_norm": True,
    "state_size": 128,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, math.inf],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "time_step_rank": 256,
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "vocab_size": 32768,
}


@pytest.mark.parametrize(
    ("family", "size", "published"),
    [
        # allenai/OLMo-2-*.
        (olmo2, "1b", 1_484_916_736),
        (olmo2, "7b", 7_298_617_344),
        (olmo2, "13b", 13_716_198_400),
        (olmo2, "32b", 32_234_279_936),
        # HuggingFaceTB/SmolLM3-3B.
        (smollm3, "3b", 3_075_098_624),
        # microsoft/Phi-3-mini-4k-instruct, Phi-3-medium-4k-instruct and phi-4.
        (phi3, "3-mini", 3_821_079_552),
        (phi3, "3-medium", 13_960_238_080),
        (phi3, "4", 14_659_507_200),
        # microsoft/Phi-4-mini-instruct.
        (phi3, "4-mini", 3_836_021_760),
        # zai-org/GLM-4.5 and GLM-4.5-Air, without the layer that predicts a second token and the
        # routers' biases.
        (glm45, "355b-a32b", 358_337_791_296 - 5_539_962_272 - 89 * 160),
        (glm45, "air", 110_468_824_832 - 3_616_573_568 - 45 * 128),
        # EleutherAI/pythia-* and gpt-neox-20b, without their masks and frequencies.
        (gpt_neox, "pythia-70m", 70_426_624),
        (gpt_neox, "pythia-160m", 162_322_944),
        (gpt_neox, "pythia-410m", 405_334_016),
        (gpt_neox, "pythia-1b", 1_011_781_632),
        (gpt_neox, "pythia-1.4b", 1_414_647_808),
        (gpt_neox, "pythia-2.8b", 2_775_208_960),
        (gpt_neox, "pythia-6.9b", 6_857_302_016),
        (gpt_neox, "pythia-12b", 11_846_072_320),
        (gpt_neox, "20b", 20_554_567_680),
        # bigcode/starcoder2-*.
        (starcoder2, "3b", 3_030_371_328),
        (starcoder2, "7b", 7_173_923_840),
        (starcoder2, "15b", 15_957_889_024),
        # allenai/Olmo-3-1025-7B and Olmo-3-1125-32B.
        (olmo3, "7b", 7_298_011_136),
        (olmo3, "32b", 32_233_522_176),
        # state-spaces/mamba2-* and mistralai/Mamba-Codestral-7B-v0.1.
        (mamba2, "130m", 128_989_632),
        (mamba2, "370m", 368_346_624),
        (mamba2, "780m", 780_161_280),
        (mamba2, "1.3b", 1_343_757_312),
        (mamba2, "2.7b", 2_702_599_680),
        (mamba2, "codestral-7b", 7_285_403_648),
        # ibm-granite/granite-3.1-*-base.
        (granite, "2b", 2_533_531_648),
        (granite, "8b", 8_170_848_256),
    ],
)
def test_parameters_are_as_many_as_published(family, size, published):
    assert count_params(family(size).build().param_specs()) == published


@pytest.mark.parametrize(
    ("ours", "published", "num_tensors", "num_params"),
    [
        pytest.param(olmo2("7b"), OLMO2_7B, 355, 7_298_617_344, id="olmo2-7b"),
        pytest.param(smollm3("3b"), SMOLLM3_3B, 326, 3_075_098_624, id="smollm3-3b"),
        pytest.param(phi3("3-mini"), PHI_3_MINI, 195, 3_821_079_552, id="phi-3-mini"),
        pytest.param(phi3("4-mini"), PHI_4_MINI, 194, 3_836_021_760, id="phi-4-mini"),
        pytest.param(glm45("air"), GLM_45_AIR, 17_925, 106_852_251_264, id="glm-4.5-air"),
        pytest.param(gpt_neox("pythia-70m"), PYTHIA_70M, 76, 70_426_624, id="pythia-70m"),
        pytest.param(starcoder2("3b"), STARCODER2_3B, 483, 3_030_371_328, id="starcoder2-3b"),
        pytest.param(olmo3("7b"), OLMO3_7B, 355, 7_298_011_136, id="olmo3-7b"),
        pytest.param(
            mamba2("codestral-7b"), CODESTRAL_7B, 579, 7_285_403_648, id="mamba-codestral-7b"
        ),
        pytest.param(granite("8b"), GRANITE_8B, 362, 8_170_848_256, id="granite-8b"),
    ],
)
def test_published_config_is_that_of_the_catalogue(ours, published, num_tensors, num_params):
    family = family_named(published["model_type"])
    assert family.normal(family.read(published)) == family.normal(ours)
    shapes = family.bind(ours).shapes
    assert len(shapes) == num_tensors
    assert sum(map(math.prod, shapes.values())) == num_params


@pytest.mark.parametrize(
    ("dim", "expert_dim", "num_experts", "norms", "num_params"),
    [(5120, 1536, 160, 2 * 128, 5_539_962_272), (4096, 1408, 128, 0, 3_616_573_568)],
)
def test_second_token_of_glm_is_counted_by_its_formula(
    dim, expert_dim, num_experts, norms, num_params
):
    """A layer behind a projection of two vectors, each with a norm; an embedding and a head."""
    queries, keys = 96 * 128, 8 * 128
    attention = 2 * dim * queries + 2 * dim * keys + queries + 2 * keys + norms
    experts = (num_experts + 1) * 3 * dim * expert_dim + num_experts * (dim + 1)
    layer = attention + experts + 2 * dim
    assert layer + 2 * dim * dim + 3 * dim + 2 * 151_552 * dim == num_params


def test_attention_factor_of_long_rows_follows_from_their_length_where_nothing_is_said():
    family = family_named("phi3")
    twice = family.read({**PHI_4_MINI, "max_position_embeddings": 8192})
    scaling = {**PHI_4_MINI["rope_scaling"], "factor": 2.0}
    assert family.read({**PHI_4_MINI, "rope_scaling": scaling}) == twice
    expected = math.sqrt(1 + math.log(2) / math.log(4096))
    assert common_value(twice, "**.inner.attention_factor") == pytest.approx(expected, rel=1e-12)
    scaling["attention_factor"] = 1.5
    given = family.read({**PHI_4_MINI, "rope_scaling": scaling})
    assert common_value(given, "**.inner.attention_factor") == 1.5


def test_early_names_of_positions_for_long_rows_mean_the_same():
    family = family_named("phi3")
    scaling = {**PHI_4_MINI["rope_scaling"], "type": "su"}
    assert family.read({**PHI_4_MINI, "rope_scaling": scaling}) == family.read(PHI_4_MINI)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"type": "linear", "factor": 2.0}, "type 'linear'; axcore knows longrope"),
        ({"type": "longrope", "long_factor": [1.0]}, "lacks .'short_factor'"),
        (
            {**PHI_4_MINI["rope_scaling"], "original_max_position_embeddings": 8192},
            "is 4096, and 8192 in rope_scaling",
        ),
    ],
)
def test_positions_that_phi_lacks_are_an_error(scaling, words):
    with pytest.raises(ConfigError, match=words):
        family_named("phi3").read({**PHI_4_MINI, "rope_scaling": scaling})


def test_branches_of_gpt_neox_are_in_turn_where_its_config_says_so():
    family = family_named("gpt_neox")
    cfg = family.read({**PYTHIA_70M, "use_parallel_residual": False})
    assert find_config(cfg, TransformerLayer)
    assert family_of(cfg)[2]["use_parallel_residual"] is False
    assert family.bind(cfg).shapes == family.bind(gpt_neox("pythia-70m")).shapes


def test_a_phi_3_is_written_as_what_it_is_but_for_names():
    assert family_of(phi3("3-mini"))[0] == "mistral"
    assert family_of(phi3("4"))[0] == "llama"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_layers_for_multi_token_prediction_are_numbered_on_behind_the_last(count):
    values = {**GLM_45_AIR, "num_hidden_layers": 5, "num_nextn_predict_layers": count}
    patterns = family_named("glm4_moe").mtp_layers(values)
    names = [f"model.layers.{i}.eh_proj.weight" for i in range(60)]
    skipped = [name for name in names if any(re.search(one, name) for one in patterns)]
    assert skipped == names[5 : 5 + count]


@pytest.mark.slow
def test_a_model_without_its_layers_for_multi_token_prediction_says_so(tmp_path):
    cfg = glm45("toy")
    to_hugging_face(tmp_path / "model", cfg, cfg.build().init(0))
    config, weights = tmp_path / "model" / "config.json", tmp_path / "model" / "model.safetensors"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "num_nextn_predict_layers": 1}))
    further = f"model.layers.{values['num_hidden_layers']}.eh_proj.weight"
    save_file({**load_file(weights), further: np.ones((2, 2), np.float32)}, weights)
    with pytest.warns(UserWarning, match=f"1 tensors are of layers for multi-token.*{further}"):
        read = from_hugging_face(tmp_path / "model")
    with pytest.warns(UserWarning, match="num_nextn_predict_layers is 0, where the pretrained"):
        to_hugging_face(tmp_path / "back", read.config, read.state)
    again = json.loads((tmp_path / "back" / "config.json").read_text())
    assert again["num_nextn_predict_layers"] == 0


def test_a_token_for_padding_is_kept_and_none_is_added(tmp_path):
    cfg = smollm3("toy")
    to_hugging_face(tmp_path / "model", cfg, cfg.build().init(0))
    values = json.loads((tmp_path / "model" / "config.json").read_text())
    assert values["pad_token_id"] is values.pop("bos_token_id") is None
    (tmp_path / "model" / "config.json").write_text(json.dumps({**values, "pad_token_id": 3}))
    read = from_hugging_face(tmp_path / "model")
    to_hugging_face(tmp_path / "back", read.config, read.state)
    again = json.loads((tmp_path / "back" / "config.json").read_text())
    assert again["pad_token_id"] == 3
    assert "bos_token_id" not in again
