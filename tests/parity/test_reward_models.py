"""The rewards of an exported reward model are those that transformers computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.config import update_config
from axcore.interop import FreshHead, from_hugging_face, to_hugging_face
from axcore.layers import whole_rows
from axcore.models import TiedHead, llama2, mistral, qwen2
from axcore.tasks import rewards

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

BASES = {
    "llama": llama2("toy"),
    "mistral": mistral("toy"),
    "qwen2-tied": update_config(qwen2("toy"), {"head": TiedHead.Config()}),
}
PAD_ID = 258


@pytest.mark.parametrize("name", BASES)
def test_rewards_are_those_of_transformers_both_ways(name, tmp_path):
    torch = pytest.importorskip("torch", reason="run make parity")
    transformers = pytest.importorskip("transformers", reason="run make parity")
    cfg = FreshHead().changed(BASES[name])
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "axcore", cfg, state, fields={"pad_token_id": PAD_ID})
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "axcore", dtype=torch.float32
    )
    assert theirs.num_labels == 1
    draw = np.random.default_rng(0)
    mask = np.arange(12) < np.array([[12], [5], [9]])
    tokens = np.where(mask, draw.integers(0, 256, (3, 12)), PAD_ID)
    with torch.no_grad():
        batch = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask * 1)}
        wanted = theirs(**batch).logits[:, 0].numpy()
    theirs.save_pretrained(tmp_path / "hf")
    back = from_hugging_face(tmp_path / "hf")
    rows = jnp.asarray(tokens, jnp.int32)
    for model, weights in ((cfg.build(), state), (back.model, back.state)):
        found = rewards(model, weights, rows, whole_rows(rows, jnp.asarray(mask)))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
