"""Files for llama.cpp of this plugin's families: tensors, metadata, and what it cannot say."""

import numpy as np
import pytest
from axl_attention.models import gemma, gemma2, gemma3, qwen3, qwen3_moe
from axl_attention.models.gemma import GEMMA2
from axl_attention.rope_scaling import LinearRoPE, Llama3RoPE, YaRN
from gguf_models import metadata_in, tensors_in, write_model
from safetensors.numpy import load_file

from axcore.config import replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.layers import RoPE, rope_frequencies
from axcore.models import llama3, qwen2


@pytest.mark.parametrize("make", [gemma, gemma2], ids=["gemma", "gemma2"])
def test_norms_of_a_gemma_hold_the_whole_scale(make, tmp_path):
    state = write_model(tmp_path / "model.gguf", make("toy"))
    found = tensors_in(tmp_path / "model.gguf")
    ours = np.asarray(state["decoder"]["norm"]["weight"])
    np.testing.assert_array_equal(found["output_norm.weight"], ours + np.float32(1.0))
    np.testing.assert_array_equal(
        found["token_embd.weight"], np.asarray(state["decoder"]["embedding"]["weight"])
    )
    assert "output.weight" not in found


def test_each_norm_of_a_gemma2_is_in_its_place(tmp_path):
    state = write_model(tmp_path / "model.gguf", gemma2("toy"))
    found = tensors_in(tmp_path / "model.gguf")
    turns = state["decoder"]["stack"]["layer"]["layer"]
    names = {
        ("attention_residual", "before"): "attn_norm",
        ("attention_residual", "after"): "post_attention_norm",
        ("feed_forward_residual", "before"): "ffn_norm",
        ("feed_forward_residual", "after"): "post_ffw_norm",
    }
    for (branch, side), theirs in names.items():
        for turn in range(2):
            ours = np.asarray(turns[str(turn)][branch][side]["weight"][0]) + np.float32(1.0)
            np.testing.assert_array_equal(found[f"blk.{turn}.{theirs}.weight"], ours)


def test_local_layers_of_a_gemma3_are_named(tmp_path):
    cfg = gemma3("toy")
    write_model(tmp_path / "model.gguf", cfg)
    found = metadata_in(tmp_path / "model.gguf")
    is_local = [True] * 5 + [False] + [True] * 2
    assert found["gemma3.attention.sliding_window_pattern"] == is_local
    assert found["gemma3.attention.sliding_window"] == 5 - 1
    assert found["gemma3.rope.freq_base"] == 1_000_000.0
    assert found["gemma3.rope.freq_base_swa"] == 10_000.0
    assert found["gemma3.rope.scaling.type"] == "linear"
    assert found["gemma3.rope.scaling.factor"] == 8.0


def test_norms_of_queries_and_experts_of_a_qwen3_are_in_their_places(tmp_path):
    state = write_model(tmp_path / "model.gguf", qwen3_moe("toy"))
    found, layer = tensors_in(tmp_path / "model.gguf"), state["decoder"]["stack"]["layer"]
    ours = layer["attention"]["position"]["query_norm"]["weight"][1]
    np.testing.assert_array_equal(found["blk.1.attn_q_norm.weight"], ours)
    experts = layer["feed_forward"]["experts"]["expert"]
    for name in ("gate", "up", "down"):
        ours = np.asarray(experts[name]["weight"][0]).swapaxes(1, 2)
        np.testing.assert_array_equal(found[f"blk.0.ffn_{name}_exps.weight"], ours)
    metadata = metadata_in(tmp_path / "model.gguf")
    assert metadata["qwen3moe.expert_count"] == len(ours)
    assert metadata["qwen3moe.expert_feed_forward_length"] == ours.shape[-1]


def test_llama_31_positions_are_a_factor_for_each_pair(tmp_path):
    scaled = Llama3RoPE.Config(theta=500_000.0, factor=8.0, original_length=16)
    write_model(tmp_path / "model.gguf", replace_config(llama3("toy"), RoPE, scaled))
    factors = tensors_in(tmp_path / "model.gguf")["rope_freqs.weight"]
    width = 2 * len(factors)
    waves = 16 * rope_frequencies(width, 500_000.0) / (2 * np.pi)
    smooth = np.clip((waves - 1) / 3, 0, 1)
    np.testing.assert_allclose(factors, 1 / (smooth + (1 - smooth) / 8), rtol=1e-6)
    assert factors[0] < factors[-1] == 8.0


def test_yarn_says_what_llama_cpp_multiplies_by_besides(tmp_path):
    scaled = YaRN.Config(theta=10_000.0, factor=4.0, original_length=8, attention_factor=2.0)
    write_model(tmp_path / "model.gguf", replace_config(qwen2("toy"), RoPE, scaled))
    found = metadata_in(tmp_path / "model.gguf")
    assert found["qwen2.rope.scaling.type"] == "yarn"
    assert found["qwen2.rope.scaling.original_context_length"] == 8
    implied = 0.1 * np.log(4.0) + 1.0
    assert found["qwen2.rope.scaling.attn_factor"] == pytest.approx(2.0 / implied)


BIASES = {"**.attention.linear.has_bias": True, "**.attention.out_linear.has_bias": True}
REFUSED = {
    "query_pre_attn_scalar is 16": (gemma2, {"**.core.scale": 0.25}),
    "final_logit_softcapping is None": (gemma2, {"head.soft_cap": None}),
    "attn_logit_softcapping is 5.0": (gemma3, {"**.core.soft_cap": 5.0}),
    "hidden_activation is 'relu'": (gemma2, {"**.activation": "relu"}),
    "norm_topk_prob is False": (qwen3_moe, {"**.router.is_normalized": False}),
    "attention_bias is True": (qwen3, BIASES),
}
POSITIONS = {
    "rope_scaling is .*llama3.*; it has linear, yarn": (qwen2, Llama3RoPE.Config(theta=1e4)),
    "rope_scaling.beta_fast is 16.0": (llama3, YaRN.Config(theta=1e4, beta_fast=16.0)),
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_llama_cpp_would_compute_otherwise_is_refused(match, tmp_path):
    make, changes = REFUSED[match]
    cfg = update_config(make("toy"), changes)
    with pytest.raises(ConfigError, match=match):
        write_model(tmp_path / "model.gguf", cfg)
    assert not list(tmp_path.iterdir())


def test_the_largest_gemma2_has_the_scale_of_its_width_over_its_heads():
    values = {**GEMMA2.write(gemma2("27b")), "max_position_embeddings": 8192}
    assert values["query_pre_attn_scalar"] == 144
    assert GEMMA2.gguf.metadata(values)["gemma2.block_count"] == 46
    smaller = {**values, "num_hidden_layers": 42}
    with pytest.raises(ConfigError, match=r"query_pre_attn_scalar is 144, .* 128 for models"):
        GEMMA2.gguf.metadata(smaller)


@pytest.mark.parametrize("match", POSITIONS)
def test_positions_that_llama_cpp_lacks_are_refused(match, tmp_path):
    make, position = POSITIONS[match]
    cfg = replace_config(make("toy"), RoPE, position)
    with pytest.raises(ConfigError, match=match):
        write_model(tmp_path / "model.gguf", cfg)


def test_linear_scaling_is_a_factor(tmp_path):
    scaled = LinearRoPE.Config(theta=10_000.0, factor=4.0)
    write_model(tmp_path / "model.gguf", replace_config(qwen2("toy"), RoPE, scaled))
    assert metadata_in(tmp_path / "model.gguf")["qwen2.rope.scaling.factor"] == 4.0


LLAMA_31 = Llama3RoPE.Config(theta=500_000.0, factor=8.0, original_length=8192)
READ = {
    "gemma": gemma("toy"),
    "gemma2": gemma2("toy"),
    "gemma3": gemma3("toy"),
    "qwen3": qwen3("toy"),
    "qwen3_moe": qwen3_moe("toy"),
    "llama-3.1": replace_config(llama3("toy"), RoPE, LLAMA_31),
    "linear": replace_config(qwen2("toy"), RoPE, LinearRoPE.Config(theta=1e4, factor=4.0)),
    "yarn": replace_config(qwen2("toy"), RoPE, YaRN.Config(factor=4.0, original_length=8)),
}


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_as_the_model_that_it_was_written_from(name, tmp_path):
    cfg = READ[name]
    state = write_model(tmp_path / "model.gguf", cfg)
    found = from_hugging_face(tmp_path / "model.gguf")
    to_hugging_face(tmp_path / "first", cfg, state)
    to_hugging_face(tmp_path / "again", found.config, found.state)
    first, again = (load_file(tmp_path / one / "model.safetensors") for one in ("first", "again"))
    assert first.keys() == again.keys()
    # A Gemma's norms are stored with one added, which rounds what was not in 16 bits before.
    rounded = 1e-7 if name.startswith("gemma") else 0.0
    for key, tensor in first.items():
        off = rounded if key.endswith("norm.weight") else 0.0
        np.testing.assert_allclose(again[key], tensor, rtol=0, atol=off, err_msg=key)


def test_factors_that_no_published_model_has_are_refused(tmp_path):
    scaled = Llama3RoPE.Config(theta=500_000.0, factor=8.0, original_length=16)
    write_model(tmp_path / "model.gguf", replace_config(llama3("toy"), RoPE, scaled))
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight=.* the factors of Llama 3\.1"):
        from_hugging_face(tmp_path / "model.gguf")
