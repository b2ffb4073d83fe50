"""Files for llama.cpp: every tensor and every number of the config where llama.cpp looks for it.

`make parity-gguf` compares what it computes with them.
"""

import sys
import tracemalloc

import attrs
import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf_models import (
    MAX_LENGTH,
    metadata_in,
    tensors_in,
    types_in,
    write_model,
    write_state,
)
from numpy_state import numpy_state

from axcore.config import replace_config, update_config
from axcore.errors import CheckpointError, ConfigError
from axcore.layers import RMSNorm
from axcore.models import UntiedHead, llama2, llama3, mistral, mixtral, qwen2
from axcore.models.causal_lm import TiedHead
from axcore.models.llama import LLAMA


def layer_arrays(state):
    return state["decoder"]["stack"]["layer"]


def same(found, axcore):
    np.testing.assert_array_equal(found, np.asarray(axcore))


def in_pairs(rows, num_heads):
    """Returns rows of heads, [N, D], whose halves are paired, so that neighbours are."""
    halves = rows.reshape(num_heads, 2, -1, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def test_a_llama_has_every_parameter_where_llama_cpp_looks_for_it(tmp_path):
    cfg = llama3("toy")
    state = write_model(tmp_path / "model.gguf", cfg)
    found, layers = tensors_in(tmp_path / "model.gguf"), layer_arrays(state)
    attention = cfg.decoder.stack.layer.attention
    heads = {"q": attention.num_heads, "k": attention.num_kv_heads}
    for i in range(cfg.decoder.stack.num_layers):
        for name, hf in {"q": "attn_q", "k": "attn_k"}.items():
            rows = np.asarray(layers["attention"][name]["weight"][i]).T
            same(found.pop(f"blk.{i}.{hf}.weight"), in_pairs(rows, heads[name]))
        for name, hf in {"v": "attn_v", "out": "attn_output"}.items():
            same(found.pop(f"blk.{i}.{hf}.weight"), layers["attention"][name]["weight"][i].T)
        for name in ("gate", "up", "down"):
            same(
                found.pop(f"blk.{i}.ffn_{name}.weight"), layers["feed_forward"][name]["weight"][i].T
            )
        for name, hf in {"attention": "attn_norm", "feed_forward": "ffn_norm"}.items():
            same(
                found.pop(f"blk.{i}.{hf}.weight"),
                layers[f"{name}_residual"]["norm"]["weight"][i],
            )
    same(found.pop("token_embd.weight"), state["decoder"]["embedding"]["weight"])
    same(found.pop("output_norm.weight"), state["decoder"]["norm"]["weight"])
    same(found.pop("output.weight"), state["head"]["weight"])
    assert not found


def test_the_metadata_is_what_the_config_says(tmp_path):
    cfg = update_config(llama3("toy"), {"**.norm.epsilon": 3e-4, "**.position.theta": 77_000.0})
    write_model(tmp_path / "model.gguf", cfg)
    found, attention = metadata_in(tmp_path / "model.gguf"), cfg.decoder.stack.layer.attention
    width = cfg.dim // attention.num_heads
    expected = {
        "general.architecture": "llama",
        "general.file_type": 0,
        "llama.vocab_size": cfg.vocab_size,
        "llama.context_length": MAX_LENGTH,
        "llama.embedding_length": cfg.dim,
        "llama.block_count": cfg.decoder.stack.num_layers,
        "llama.feed_forward_length": cfg.decoder.stack.layer.feed_forward.hidden_dim,
        "llama.attention.head_count": attention.num_heads,
        "llama.attention.head_count_kv": attention.num_kv_heads,
        "llama.attention.key_length": width,
        "llama.attention.value_length": width,
        "llama.rope.dimension_count": width,
        "llama.rope.freq_base": 77_000.0,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(3e-4),
    }
    assert {name: found[name] for name in expected} == expected
    assert not [name for name in found if name.startswith("llama.") and name not in expected]


def test_biases_of_a_qwen_stay_as_they_are(tmp_path):
    cfg = replace_config(qwen2("toy"), UntiedHead, TiedHead.Config())
    state = write_model(tmp_path / "model.gguf", cfg)
    found, attention = tensors_in(tmp_path / "model.gguf"), layer_arrays(state)["attention"]
    for name in "qkv":
        same(found[f"blk.1.attn_{name}.weight"], attention[name]["weight"][1].T)
        same(found[f"blk.1.attn_{name}.bias"], attention[name]["bias"][1])
    assert "output.weight" not in found


def test_experts_of_a_layer_are_one_tensor(tmp_path):
    cfg = mixtral("toy")
    state = write_model(tmp_path / "model.gguf", cfg, dtype="bfloat16")
    found, types = tensors_in(tmp_path / "model.gguf"), types_in(tmp_path / "model.gguf")
    axcore = np.asarray(
        layer_arrays(state)["feed_forward"]["experts"]["expert"]["down"]["weight"][1]
    )
    same(found["blk.1.ffn_down_exps.weight"], axcore.swapaxes(1, 2).astype("bfloat16"))
    router = layer_arrays(state)["feed_forward"]["router"]["linear"]["weight"][1]
    same(found["blk.1.ffn_gate_inp.weight"], router.T)
    assert types["blk.1.ffn_gate_inp.weight"] == types["blk.1.ffn_norm.weight"] == "F32"
    assert types["blk.1.ffn_down_exps.weight"] == types["token_embd.weight"] == "BF16"
    metadata = metadata_in(tmp_path / "model.gguf")
    assert metadata["llama.expert_count"] == len(axcore)
    assert metadata["llama.expert_used_count"] == 2


@pytest.mark.parametrize(
    ("dtype", "number", "atol"), [("float16", 1, 1e-3), ("bfloat16", 32, 1e-2), ("q8_0", 7, 1e-2)]
)
def test_matrices_are_of_the_type_that_is_asked_for(dtype, number, atol, tmp_path):
    state = write_model(tmp_path / "model.gguf", llama2("toy"), dtype=dtype)
    types, found = types_in(tmp_path / "model.gguf"), tensors_in(tmp_path / "model.gguf")
    kind = {"float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}[dtype]
    assert types.pop("blk.0.attn_v.weight") == types.pop("output.weight") == kind
    assert types["output_norm.weight"] == "F32"
    assert metadata_in(tmp_path / "model.gguf")["general.file_type"] == number
    axcore = np.asarray(layer_arrays(state)["attention"]["v"]["weight"][0]).T
    assert np.abs(found["blk.0.attn_v.weight"] - axcore).max() < atol
    if dtype == "q8_0":
        blocks = gguf.quants.quantize(axcore, gguf.GGMLQuantizationType.Q8_0)
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
        same(found["blk.0.attn_v.weight"], expected)


def test_parameters_keep_their_own_dtype_by_default(tmp_path):
    cfg = update_config(llama2("toy"), {"dtypes.param": "bfloat16"})
    write_model(tmp_path / "model.gguf", cfg)
    assert types_in(tmp_path / "model.gguf")["blk.0.attn_v.weight"] == "BF16"


def test_rows_that_have_no_whole_blocks_are_refused(tmp_path):
    cfg = update_config(llama2("toy"), {"**.hidden_dim": 40})
    with pytest.raises(
        ConfigError, match=r"ffn_down.weight has rows of 40 numbers, and q8_0 blocks"
    ):
        write_model(tmp_path / "model.gguf", cfg, dtype="q8_0")
    assert not list(tmp_path.iterdir())


def test_numbers_that_a_type_lacks_leave_no_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"weight contains numbers .* float16"):
        write_model(tmp_path / "model.gguf", llama2("toy"), dtype="float16", scale=1e9)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "model.gguf").write_text("mine")
    with pytest.raises(CheckpointError, match="file already exists"):
        write_model(tmp_path / "model.gguf", llama2("toy"))
    assert (tmp_path / "model.gguf").read_text() == "mine"


def test_what_the_library_is_in_is_said_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="needs gguf, which is not installed") as error:
        write_model(tmp_path / "model.gguf", llama2("toy"))
    assert "axcore[weights]" in str(error.value)


def test_a_window_is_written_only_where_no_row_reaches_it(tmp_path):
    windowed = update_config(mistral("toy"), {"**.core.window": (4, 0)})
    with pytest.raises(ConfigError, match="sliding_window is 5 and rows have up to 128 tokens"):
        write_model(tmp_path / "model.gguf", windowed)
    write_model(tmp_path / "model.gguf", windowed, max_length=5)
    assert metadata_in(tmp_path / "model.gguf")["llama.context_length"] == 5


def test_a_family_without_a_map_is_refused_with_those_that_have_one(tmp_path):
    olmo = pytest.importorskip("axl_attention.models").olmo2("toy")
    with pytest.raises(ConfigError, match="models of type olmo2 are not written") as error:
        write_model(tmp_path / "model.gguf", olmo)
    assert "llama, mistral, mixtral, qwen2" in str(error.value)


def test_a_model_is_in_memory_once(tmp_path):
    cfg = update_config(llama2("toy"), {"decoder.stack.num_layers": 12, "**.hidden_dim": 1024})
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    write_state(tmp_path / "first.gguf", cfg, state)  # compiles, and imports
    tracemalloc.start()
    try:
        write_state(tmp_path / "model.gguf", cfg, state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = (tmp_path / "model.gguf").stat().st_size
    assert size > 10e6
    assert peak < 0.25 * size


def test_a_field_without_a_place_is_an_error_by_name():
    values = {**LLAMA.write(llama2("toy")), "max_position_embeddings": MAX_LENGTH}
    with pytest.raises(ConfigError, match=r"of type llama have nothing for:\nlogit_cap=30.0"):
        LLAMA.gguf.metadata({**values, "logit_cap": 30.0})


def test_a_model_of_no_family_is_refused(tmp_path):
    odd = replace_config(llama2("toy"), RMSNorm, lambda norm: attrs.evolve(norm, weight_offset=1.0))
    with pytest.raises(ConfigError, match="no family of pretrained checkpoints has such a model"):
        write_model(tmp_path / "model.gguf", odd)
