"""Adapters load with PEFT onto the model that they correct, and are the same model there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from parity_pairs import MODELS, TOKENS, load_theirs, model_logits, their_logits

from axcore.interop import HuggingFace, read_corrections, to_hugging_face, to_peft
from axcore.layers import merge_adapters, without_lora
from axcore.modifiers import LoRA
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
    ours = model_logits(module, state, TOKENS)
    to_peft(tmp_path / "adapters", cfg, state)
    plain, merged = without_lora(cfg), merge_adapters(module, state)
    to_hugging_face(tmp_path / "merged", plain, merged)
    to_hugging_face(tmp_path / "base", plain, zeroed(cfg, state))
    base, _ = load_theirs(tmp_path / "base")
    assert np.abs(their_logits(base, TOKENS) - ours).max() > 0.1
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters")
    np.testing.assert_allclose(their_logits(adapted, TOKENS), ours, atol=1e-4)
    np.testing.assert_allclose(
        their_logits(load_theirs(tmp_path / "merged")[0], TOKENS), ours, atol=1e-4
    )


@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "target_modules": "all-linear"}])
def test_adapters_that_peft_saved_are_read_as_the_same_model(options, tmp_path):
    peft = pytest.importorskip("peft", reason="run make parity")
    torch = pytest.importorskip("torch", reason="run make parity")
    cfg = MODELS["llama"]()
    to_hugging_face(tmp_path / "base", cfg, numpy_state_of(cfg))
    base, _ = load_theirs(tmp_path / "base")
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], **options}
    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    theirs = their_logits(adapted, TOKENS)
    adapted.save_pretrained(tmp_path / "adapters")
    corrected = read_corrections(tmp_path / "adapters", cfg).config
    source = {"path": str(tmp_path / "base"), "adapters": str(tmp_path / "adapters")}
    wanted = jax.eval_shape(lambda: corrected.build().init(0))
    state = HuggingFace.Config(**source).build().plan(corrected).read(wanted)
    np.testing.assert_allclose(model_logits(corrected.build(), state, TOKENS), theirs, atol=1e-4)
    assert np.abs(model_logits(cfg.build(), numpy_state_of(cfg), TOKENS) - theirs).max() > 0.05


def numpy_state_of(cfg):
    return jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))


def zeroed(cfg, state):
    """Returns the base of a state with adapters."""

    def without(path, leaf):
        return 0.0 * leaf if "lora_up" in jax.tree_util.keystr(path) else leaf

    return merge_adapters(cfg.build(), jax.tree_util.tree_map_with_path(without, state))
