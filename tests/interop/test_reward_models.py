"""Reward models are written and read as transformers' classifiers of one label."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import FreshHead, from_hugging_face, to_hugging_face
from axcore.models import llama2, qwen2
from axcore.models.causal_lm import TiedHead

BASES = {
    "llama": llama2("toy"),
    "qwen2": update_config(qwen2("toy"), {"head": TiedHead.Config()}),
}


def written(folder, cfg):
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(folder, cfg, state)
    return state


@pytest.mark.parametrize("family", BASES)
def test_a_reward_model_that_is_written_and_read_is_the_same(family, tmp_path):
    cfg = FreshHead().changed(BASES[family])
    state = written(tmp_path / "hf", cfg)
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert content["architectures"][0].endswith("ForSequenceClassification")
    assert content["id2label"] == {"0": "LABEL_0"}
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert tensors["score.weight"].shape == (1, cfg.dim)
    assert "lm_head.weight" not in tensors
    found = from_hugging_face(tmp_path / "hf")
    assert type(found.config.head) is type(cfg.head)
    jax.tree.map(np.testing.assert_array_equal, found.state, state)


def test_a_classifier_of_two_labels_is_refused(tmp_path):
    written(tmp_path / "hf", FreshHead().changed(BASES["llama"]))
    path = tmp_path / "hf" / "config.json"
    content = json.loads(path.read_text())
    for names in ({"0": "good", "1": "bad"}, None):
        labels = {} if names is None else {"id2label": names}
        rest = {name: one for name, one in content.items() if "label" not in name}
        path.write_text(json.dumps({**rest, **labels}))
        with pytest.raises(ConfigError, match="a classifier of 2 labels; a reward model has one"):
            from_hugging_face(tmp_path / "hf")
