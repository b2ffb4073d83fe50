"""Adapters load with PEFT onto the model that they correct, and are the same model there."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from parity_pairs import MODELS, TOKENS, load_hf, model_logits, their_logits
from safetensors.numpy import load_file

from axcore.interop import HuggingFace, read_adapters, to_hugging_face, to_peft
from axcore.layers import merge_adapters, without_lora
from axcore.modifiers import LoRA
from axcore.module import functional
from axcore.plugins import Hardware

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's own
]

TARGETS = {
    "llama": ("**",),
    "mistral": ("**.attention",),
    "qwen2-tied": ("**.out_linear",),
    "llama-biased": ("**.feed_forward",),
}


@pytest.mark.parametrize("name", TARGETS)
def test_adapters_and_their_merged_model_give_the_same_logits(name, tmp_path):
    peft = pytest.importorskip("peft", reason="run make parity")
    lora = LoRA(rank=4, alpha=6.0, targets=TARGETS[name])
    cfg = lora.apply(MODELS[name](), Hardware.parse("cpu-1"))
    module = cfg.build()
    state = jax.tree.map(jnp.asarray, numpy_state(module.param_specs()))
    axcore = model_logits(module, state, TOKENS)
    to_peft(tmp_path / "adapters", cfg, state)
    plain, merged = without_lora(cfg), merge_adapters(module, state)
    to_hugging_face(tmp_path / "merged", plain, merged)
    to_hugging_face(tmp_path / "base", plain, zeroed(cfg, state))
    base, _ = load_hf(tmp_path / "base")
    assert np.abs(their_logits(base, TOKENS) - axcore).max() > 0.1
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters")
    np.testing.assert_allclose(their_logits(adapted, TOKENS), axcore, atol=1e-4)
    np.testing.assert_allclose(
        their_logits(load_hf(tmp_path / "merged")[0], TOKENS), axcore, atol=1e-4
    )


def logits_as_read(adapted, cfg, tmp_path):
    """Returns the logits of the model in `base` with what peft saves of its adapted form."""
    adapted.save_pretrained(tmp_path / "adapters")
    corrected = read_adapters(tmp_path / "adapters", cfg).config
    source = {"path": str(tmp_path / "base"), "adapters": str(tmp_path / "adapters")}
    wanted = jax.eval_shape(lambda: corrected.build().init(0))
    state = HuggingFace.Config(**source).build().plan(corrected).read(wanted)
    return model_logits(corrected.build(), state, TOKENS)


@pytest.mark.parametrize(
    "options", [{}, {"use_rslora": True, "target_modules": "all-linear"}, {"use_dora": True}]
)
def test_adapters_that_peft_saved_are_read_as_the_same_model(options, tmp_path):
    peft = pytest.importorskip("peft", reason="run make parity")
    torch = pytest.importorskip("torch", reason="run make parity")
    cfg = MODELS["llama"]()
    to_hugging_face(tmp_path / "base", cfg, numpy_state_of(cfg))
    base, _ = load_hf(tmp_path / "base")
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], **options}
    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
            if "magnitude" in name:
                one *= 1.3
    hf = their_logits(adapted, TOKENS)
    np.testing.assert_allclose(logits_as_read(adapted, cfg, tmp_path), hf, atol=1e-4)
    assert np.abs(model_logits(cfg.build(), numpy_state_of(cfg), TOKENS) - hf).max() > 0.05


BESIDE = {
    "saved modules": {"modules_to_save": ["lm_head", "embed_tokens", "norm"]},
    "all biases": {"bias": "all"},
    "biases of adapted layers": {"bias": "lora_only"},
    "an adapted embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "an adapted head": {"target_modules": ["q_proj", "lm_head"]},
}


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")  # peft's own
@pytest.mark.filterwarnings("ignore:no adapter layer here adapts:UserWarning")
@pytest.mark.parametrize("kind", BESIDE)
def test_what_peft_trained_beside_linear_layers_is_read(kind, tmp_path):
    peft = pytest.importorskip("peft", reason="run make parity")
    torch = pytest.importorskip("torch", reason="run make parity")
    cfg = MODELS["llama-biased"]()
    to_hugging_face(tmp_path / "base", cfg, numpy_state_of(cfg))
    base, _ = load_hf(tmp_path / "base")
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], **BESIDE[kind]}
    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for one in adapted.parameters():
            if one.requires_grad:
                one += 0.2 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1))
    hf = their_logits(adapted, TOKENS)
    np.testing.assert_allclose(logits_as_read(adapted, cfg, tmp_path), hf, atol=2e-4)


KINDS = {
    "lora": {},
    "rank-stabilised": {"use_rslora": True},
    "dora": {"use_dora": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama-biased", "qwen2-tied"])
def test_loss_and_gradients_are_those_of_peft(name, kind, tmp_path):
    peft = pytest.importorskip("peft", reason="run make parity")
    torch = pytest.importorskip("torch", reason="run make parity")
    cfg = LoRA(rank=4, alpha=6.0, **KINDS[kind]).apply(MODELS[name](), Hardware.parse("cpu-1"))
    module, state = cfg.build(), numpy_state_of(cfg)
    to_peft(tmp_path / "adapters", cfg, state)
    to_hugging_face(tmp_path / "base", without_lora(cfg), zeroed(cfg, state))
    base, _ = load_hf(tmp_path / "base")
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters", is_trainable=True)
    logits = adapted(torch.tensor(TOKENS, dtype=torch.long)).logits[:, :-1].float()
    targets = torch.tensor(TOKENS[:, 1:], dtype=torch.long)
    hf = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    hf.backward()

    def loss(state):
        logits, _ = functional(module, state, jnp.asarray(TOKENS), method="logits")
        log_probs = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
        return -jnp.take_along_axis(log_probs, jnp.asarray(TOKENS)[:, 1:, None], 2).mean()

    axcore, gradient = jax.jit(jax.value_and_grad(loss))(state)
    assert float(axcore) == pytest.approx(hf.item(), rel=2e-5)
    to_peft(tmp_path / "gradient", cfg, with_base_of_zeros(gradient))
    found = load_file(tmp_path / "gradient" / "adapter_model.safetensors")
    wanted = {
        name.replace(".default", "").replace("_vector.weight", "_vector"): parameter.grad.numpy()
        for name, parameter in adapted.named_parameters()
        if parameter.grad is not None
    }
    assert found.keys() == wanted.keys()
    assert any("magnitude" in name for name in found) == (kind == "dora")
    for name, value in wanted.items():
        atol = 1e-3 * np.abs(value).max() + 1e-7
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


def with_base_of_zeros(gradient):
    """Returns a gradient as a state; weights without length leave that of magnitudes as it is."""

    def without(path, leaf):
        return leaf if "lora_" in jax.tree_util.keystr(path) else 0.0 * leaf

    return jax.tree_util.tree_map_with_path(without, gradient)


def numpy_state_of(cfg):
    return jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))


def zeroed(cfg, state):
    """Returns the base of a state with adapters."""

    def without(path, leaf):
        is_adapter = re.search("lora_(up|magnitude)", jax.tree_util.keystr(path))
        return 0.0 * leaf if is_adapter else leaf

    return merge_adapters(cfg.build(), jax.tree_util.tree_map_with_path(without, state))
