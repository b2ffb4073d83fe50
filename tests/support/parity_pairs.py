"""A small model of each family in both libraries: in axcore and in transformers.

`make parity` makes the environment that has both.
"""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file

from axcore.config import replace_config, update_config
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.layers import RoPE, Sequence
from axcore.models import TiedHead, UntiedHead, llama2, llama3, mistral, mixtral, qwen2
from axcore.module import functional

TOKENS = np.random.default_rng(1).integers(0, 264, (2, 24)).astype(np.int32)
NUM_DRAWN = 12


def _llama31():
    from axl_attention.rope_scaling import Llama3RoPE

    scaled = Llama3RoPE.Config(theta=500_000.0, factor=8.0, original_length=16)
    return replace_config(llama3("toy"), RoPE, scaled)


def _yarn():
    from axl_attention.rope_scaling import YaRN

    return replace_config(
        qwen2("toy"), RoPE, YaRN.Config(theta=10_000.0, factor=4.0, original_length=8)
    )


def _linear():
    from axl_attention.rope_scaling import LinearRoPE

    return replace_config(llama2("toy"), RoPE, LinearRoPE.Config(theta=10_000.0, factor=4.0))


MODELS = {
    "llama": lambda: llama2("toy"),
    "llama-3.1": _llama31,
    "llama-3.2": lambda: replace_config(_llama31(), UntiedHead, TiedHead.Config()),
    "llama-linear": _linear,
    "llama-biased": lambda: update_config(
        llama3("toy"), {"**.linear.has_bias": True, "**.out_linear.has_bias": True}
    ),
    "mistral": lambda: update_config(mistral("toy"), {"**.core.window": (4, 0)}),
    "mixtral": lambda: mixtral("toy"),
    "qwen2": lambda: qwen2("toy"),
    "qwen2-tied": lambda: replace_config(qwen2("toy"), UntiedHead, TiedHead.Config()),
    "qwen2-yarn": _yarn,
}


def _of_plugin(name):
    def make():
        import axl_attention.models

        return getattr(axl_attention.models, name)("toy")

    return make


MODELS |= {name: _of_plugin(name) for name in ("gpt2", "qwen3", "qwen3_moe", "qwen3_next")}
MODELS |= {name: _of_plugin(name) for name in ("gemma", "gemma2")}
_OPEN = ("gpt_neox", "granite", "olmo2", "olmo3", "mamba2", "smollm3", "starcoder2")
MODELS |= {name: _of_plugin(name) for name in _OPEN}


def _phi3():
    """Returns a Phi-4-mini, whose heads have positions in a part; others are Mistrals too."""
    from axl_attention.positions import PartialRotary

    return replace_config(
        _of_plugin("phi3")(), RoPE, lambda old: PartialRotary.Config(fraction=0.75, inner=old)
    )


MODELS["phi3"] = _phi3


def _longrope():
    """Returns a Phi-4-mini to which the rows of tests are long, and what is sampled is short."""
    from axl_attention.rope_scaling import LongRoPE

    long = LongRoPE.Config(
        theta=10_000.0,
        short_factors=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
        long_factors=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        original_length=20,
        attention_factor=1.25,
    )
    return replace_config(_phi3(), RoPE, long)


MODELS["phi3-longrope"] = _longrope


def _gemma3():
    """Returns a local layer, a global one, and two local ones."""
    cfg = _of_plugin("gemma3")()
    turns, left = cfg.decoder.stack.layers
    layers = (*turns.layer.layers[-2:], left)
    return update_config(cfg, {"decoder.stack": Sequence.Config(layers=layers)})


MODELS["gemma3"] = _gemma3
MODELS |= {name: _of_plugin(name) for name in ("glm", "glm4")}
MODELS |= {name: _of_plugin(name) for name in ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm45")}
MODELS["deepseek_v32"] = _of_plugin("deepseek_v32")
MODELS["glm47_flash"] = _of_plugin("glm47_flash")
MODELS["llama4_text"] = lambda: update_config(
    _of_plugin("llama4")(), {"**.strength": 1.0, "**.feed_forward.top_k": 2}
)
MODELS |= {name: _of_plugin(name) for name in ("olmoe", "qwen2_moe", "granitemoe")}
MODELS |= {name: _of_plugin(name) for name in ("phi", "stablelm", "cohere", "cohere2")}
_OLDER = ("gptj", "opt", "bloom", "falcon", "mamba")
MODELS |= {name: _of_plugin(name) for name in ("ministral3", "minimax_m2", "granite4", *_OLDER)}


def _falcon_7b():
    """Returns a Falcon with one norm a layer, and one head of keys and values."""
    from axl_attention.layers import OneNormLayer, ParallelLayer

    def one_norm(old):
        return OneNormLayer.Config(
            attention=old.attention, feed_forward=old.feed_forward, norm=old.norm
        )

    cfg = replace_config(_of_plugin("falcon")(), ParallelLayer, one_norm)
    return update_config(cfg, {"**.attention.num_kv_heads": 1})


MODELS["falcon-7b"] = _falcon_7b
MODELS["qwen3_5"] = _of_plugin("qwen3_5")


def _mixed(name):
    def make():
        import axl_attention.models

        return getattr(axl_attention.models, name)("toy-mixed")

    return make


MODELS["qwen3_5_moe"] = _mixed("qwen3_5")


def _floored(make):
    """Returns the same with a floor that more steps of a toy are below than of a thousandth."""
    return lambda: update_config(make(), {"**.smallest_step": 0.03})


MODELS["nemotron_h"] = _floored(_of_plugin("nemotron_h"))
MODELS["nemotron_h_moe"] = _floored(_mixed("nemotron_h"))
MODELS["falcon_h1"] = _of_plugin("falcon_h1")
# Most logits of a toy's router are apart: with this margin many experts have rivals.
MODELS["phimoe"] = lambda: update_config(_of_plugin("phimoe")(), {"**.router.margin": 0.4})
MODELS["gpt_oss"] = lambda: update_config(_of_plugin("gpt_oss")(), {"**.expert.limit": 0.5})


@attrs.frozen(eq=False)
class Pair:
    """One model in a folder, in axcore and in transformers, both in float32.

    Args:
        folder: What axcore wrote.
        axcore: What axcore reads from it.
        hf: What transformers reads from it.
        complaints: What transformers says was missing, unexpected or of another shape.
    """

    folder: Path
    axcore: Any
    hf: Any
    complaints: dict[str, Any]

    @functools.cached_property
    def logits(self) -> np.ndarray:
        return their_logits(self.hf, TOKENS)


def our_logits(read: Any, tokens: np.ndarray, info: Any = None) -> np.ndarray:
    return model_logits(read.model, read.state, tokens, info)


def model_logits(model: Any, state: Any, tokens: np.ndarray, info: Any = None) -> np.ndarray:
    return np.asarray(_compiled(model)(state, tokens, info))


@functools.lru_cache(maxsize=1)
def _compiled(model: Any) -> Any:
    def run(state: Any, tokens: Any, info: Any) -> Any:
        return functional(model, state, tokens, info, method="logits")[0]

    return jax.jit(run)


def their_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor(tokens).long()).logits.float().numpy()
    return logits


def load_hf(folder: Path) -> tuple[Any, dict[str, Any]]:
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    return model.eval(), {key: value for key, value in said.items() if value}


def assert_same_gradient(gradient: Any, cfg: Any, hf: Any, folder: Path) -> None:
    """Checks the gradient of a model against that of the model of transformers, array by array."""
    to_hugging_face(folder, cfg, gradient)
    found = load_file(folder / "model.safetensors")
    wanted = {
        name: parameter.grad.numpy()
        for name, parameter in hf.named_parameters()
        if parameter.grad is not None
    }
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        atol = 1e-3 * np.abs(value).max() + 1e-7
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


def make_pair(name: str, folder: Path) -> Pair:
    """Returns a model in both libraries, by way of a folder that axcore writes."""
    pytest.importorskip("torch", reason="run make parity")
    cfg = MODELS[name]()
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(folder, cfg, state, max_length=128)
    hf, complaints = load_hf(folder)
    return Pair(folder, from_hugging_face(folder), hf, complaints)


def config_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return content


def saved_gradients(model: Any, folder: Path) -> Any:
    """Returns a model's gradients by the names that its parameters have in files.

    They are zeros where it has none, as the loss does not depend on the parameter.
    """
    import torch

    copied = copy.deepcopy(model)
    with torch.no_grad():
        for param, original in zip(copied.parameters(), model.parameters(), strict=True):
            param.copy_(torch.zeros_like(param) if original.grad is None else original.grad)
        for buffer in copied.buffers():
            buffer.zero_()
    copied.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def mutated(name: str, value: Any) -> Any:
    """Returns another value of a field, one that a model can have."""
    if name.endswith(("eps", "epsilon")):
        return 0.3
    if name == "rope_scaling" and value is None:
        return {"rope_type": "linear", "factor": 2.0}
    if isinstance(value, dict):
        return {n: one if isinstance(one, str) else mutated(n, one) for n, one in value.items()}
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return {"silu": "gelu", "gelu_pytorch_tanh": "relu"}.get(value, f"not {value}")
    if value is None or isinstance(value, list):
        return 3 if value is None else [0]
    if isinstance(value, float):
        return 3 * value
    return value // 2 if value > 1 else value + 1


def changing(content: Any) -> list[str]:
    """Returns the fields of a config that change numbers."""
    unchanging = {"architectures", "model_type", "torch_dtype", "max_position_embeddings"}
    unchanging |= {"bos_token_id", "eos_token_id", "pad_token_id", "chunk_size"}
    unchanging.add("mamba_chunk_size")
    if content["model_type"] == "gptj":  # others have a vector for each of so many positions
        unchanging.add("n_positions")
    return sorted(content.keys() - unchanging)
