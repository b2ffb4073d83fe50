"""Adapters for PEFT: named as the family names modules, and the correction that they are here."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file

from axcore.config import config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import adapter_format, to_hugging_face, to_peft
from axcore.interop.peft import PeftFormat
from axcore.layers import Linear, LoRALinear, merge_adapters, without_lora
from axcore.models import llama2, mixtral
from axcore.modifiers import LoRA
from axcore.module import Module
from axcore.plugins import Hardware

CPU = Hardware.parse("cpu-1")
PARTS = {"self_attn": "attention", "mlp": "feed_forward"}


def adapted(cfg, **options):
    return LoRA(**{"rank": 4, "alpha": 6.0, **options}).apply(cfg, CPU)


def state_of(cfg):
    return jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))


def config_in(folder):
    return json.loads((folder / "adapter_config.json").read_text())


def test_factors_make_the_correction_that_merging_adds(tmp_path):
    cfg = adapted(llama2("toy"))
    state = state_of(cfg)
    assert to_peft(tmp_path / "adapters", cfg, state, base="some/model") == "llama"
    said = config_in(tmp_path / "adapters")
    assert (said["r"], said["lora_alpha"], said["lora_dropout"]) == (4, 6.0, 0.0)
    assert said["base_model_name_or_path"] == "some/model"
    assert "q_proj" in said["target_modules"]
    factors = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    zero = {name: leaf for name, leaf in factors.items() if "lora_A" in name}
    to_hugging_face(tmp_path / "merged", without_lora(cfg), merge_adapters(cfg.build(), state))
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    base = state["decoder"]["stack"]["layer"]
    for name, down in zero.items():
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        change = 1.5 * factors[name.replace("lora_A", "lora_B")] @ down
        layer, part, projection = module.removeprefix("model.layers.").split(".")
        axcore = base[PARTS[part]][projection.replace("o_proj", "out").removesuffix("_proj")]
        plain = np.asarray(axcore["base"]["weight"][int(layer)]).T
        np.testing.assert_allclose(merged[f"{module}.weight"], plain + change, atol=1e-5)
    assert len(zero) == 14


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_adapters_are_stored_in_the_dtype_that_is_asked_for(dtype, tmp_path):
    cfg = adapted(llama2("toy"), targets=("**.attention",))
    to_peft(tmp_path / "adapters", cfg, state_of(cfg), dtype=dtype)
    tensors = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    assert {str(one.dtype) for one in tensors.values()} == {dtype or "float32"}
    said = config_in(tmp_path / "adapters")["target_modules"]
    assert said == ["k_proj", "o_proj", "q_proj", "v_proj"]


def test_what_peft_has_no_adapters_for_is_an_error_that_names_it(tmp_path):
    cfg = adapted(mixtral("toy"))
    with pytest.raises(ConfigError, match=r"(?s)48 adapters.*experts\.0\.w1"):
        to_peft(tmp_path / "adapters", cfg, state_of(cfg))
    with pytest.raises(ConfigError, match="no adapters"):
        to_peft(tmp_path / "adapters", llama2("toy"), None)
    assert list(tmp_path.iterdir()) == []


def test_adapters_of_several_ranks_are_an_error(tmp_path):
    cfg = adapted(llama2("toy"), targets=("**.attention.linear",))
    cfg = update_config(cfg, {"**.out_linear": LoRALinear.Config(base=Linear.Config(), rank=2)})
    with pytest.raises(ConfigError, match="several ranks"):
        to_peft(tmp_path / "adapters", cfg, state_of(cfg))


class Corrected(Module):
    """A linear layer with a correction that nobody says how to export."""

    @config
    class Config(Module.Config):
        base: Module.Config = Linear.Config()


def test_the_format_of_corrections_is_that_of_their_layer():
    assert adapter_format(llama2("toy")) is None
    assert isinstance(adapter_format(adapted(llama2("toy"))), PeftFormat)
    unknown = replace_config(llama2("toy"), Linear, lambda base: Corrected.Config(base=base))
    with pytest.raises(ConfigError, match="nothing installed says how a Corrected"):
        adapter_format(unknown)
