"""Adapters of projections that a family fuses or stores in another order are read exactly."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.models import glm4, gpt2, phi3
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.config import evolve
from axcore.interop import HuggingFace, from_hugging_face, read_adapters, to_hugging_face
from axcore.interop.family import CheckpointInfo
from axcore.layers import merge_adapters, without_lora

RANK, ALPHA = 3, 6.0
PREFIX = "base_model.model."
FILE = "adapter_model.safetensors"
FAMILIES = {
    "phi3": (phi3, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "gpt2": (gpt2, ["c_attn", "c_fc", "c_proj"]),
    "glm4": (glm4, ["q_proj", "k_proj", "gate_up_proj"]),
}


@pytest.mark.quick_one_in(6)
@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_merged_weights_are_those_that_peft_makes(name, use_dora, tmp_path):
    make, targets = FAMILIES[name]
    state = jax.tree.map(jnp.asarray, numpy_state(make("toy").build().param_specs()))
    cfg = evolve(make("toy"), published=CheckpointInfo(family=name))
    assert to_hugging_face(tmp_path / "base", cfg, state) == name
    base = load_file(tmp_path / "base" / "model.safetensors")
    is_transposed = name == "gpt2"  # as torch's Conv1D has its weights
    expected = write_adapters(tmp_path / "adapters", base, targets, is_transposed, use_dora)

    cfg = from_hugging_face(tmp_path / "base").config
    folders = {"path": str(tmp_path / "base"), "adapters": str(tmp_path / "adapters")}
    adapted = read_adapters(folders["adapters"], cfg).config
    plan = HuggingFace.Config(**folders).build().plan(adapted)
    read = plan.read(jax.eval_shape(lambda: adapted.build().init(0)))
    merged = merge_adapters(adapted.build(), read)
    to_hugging_face(tmp_path / "merged", without_lora(adapted), merged)
    found = load_file(tmp_path / "merged" / "model.safetensors")
    assert found.keys() == base.keys()
    assert len(expected) >= 2 * len(targets)  # two layers
    assert all(np.abs(array - base[tensor]).max() > 0.1 for tensor, array in expected.items())
    for tensor, array in found.items():
        np.testing.assert_allclose(array, expected.get(tensor, base[tensor]), atol=1e-5)


def write_adapters(folder, base, targets, is_transposed, use_dora):
    """Write random adapters of some modules; returns their weights with them, by formula."""
    random, tensors, expected = np.random.default_rng(3), {}, {}
    for name, stored in base.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in targets or stored.ndim != 2:
            continue
        weight = stored.T if is_transposed else stored
        a = random.normal(size=(RANK, weight.shape[1])).astype(np.float32)
        b = random.normal(size=(weight.shape[0], RANK)).astype(np.float32)
        tensors[f"{PREFIX}{module}.lora_A.weight"] = a
        tensors[f"{PREFIX}{module}.lora_B.weight"] = b
        whole = weight + ALPHA / RANK * b @ a
        if use_dora:
            lengths = np.linalg.norm(weight, axis=1) * random.uniform(0.5, 2.0, len(weight))
            tensors[f"{PREFIX}{module}.lora_magnitude_vector"] = lengths.astype(np.float32)
            whole = whole * (lengths / np.linalg.norm(whole, axis=1))[:, None]
        expected[name] = whole.T if is_transposed else whole
    folder.mkdir()
    save_file({n: np.ascontiguousarray(one) for n, one in tensors.items()}, folder / FILE)
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
    said |= {"use_dora": use_dora, "fan_in_fan_out": is_transposed}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return expected
