"""Adapters load with PEFT onto the model that they correct, and are the same model there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from parity_pairs import MODELS, TOKENS, load_theirs, model_logits, their_logits

from axcore.interop import to_hugging_face, to_peft
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


def zeroed(cfg, state):
    """Returns the base of a state with adapters."""

    def without(path, leaf):
        return 0.0 * leaf if "lora_up" in jax.tree_util.keystr(path) else leaf

    return merge_adapters(cfg.build(), jax.tree_util.tree_map_with_path(without, state))
