"""Qwen2.5-VL: logits and gradients of transformers' own, weights both ways, and how it serves."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.parity

IMAGE = {
    "depth": 4,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1, 3],
    "patch_size": 4,
    "window_size": 16,
}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}


def make() -> Any:
    from qwen_pictures import TEXT, make

    return make("Qwen2_5_VL", IMAGE, {**TEXT, "rope_parameters": ROPE})


def test_logits_and_gradients_are_those_of_transformers(tmp_path):
    from axl_vision.models import with_picture_size
    from picture_parity import check_is_the_same
    from qwen_pictures import HEIGHT, PIXELS, ROWS, WIDTH, logits_of

    sized = lambda cfg: with_picture_size(cfg, HEIGHT, WIDTH)  # noqa: E731
    check_is_the_same(make(), logits_of, PIXELS, ROWS, tmp_path, sized=sized, near=5e-5)


def test_a_file_without_parts_says_the_same(tmp_path):
    from axcore.interop import from_hugging_face

    make().save_pretrained(tmp_path)
    wanted = from_hugging_face(tmp_path).config
    values = json.loads((tmp_path / "config.json").read_text())
    text = values.pop("text_config")
    # As the folders that were published first have it.
    text.pop("model_type")
    theta = text.pop("rope_parameters")["rope_theta"]
    text |= {"rope_theta": theta, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    (tmp_path / "config.json").write_text(json.dumps({**text, **values}))
    assert from_hugging_face(tmp_path).config.decoder == wanted.decoder


def test_text_alone_is_that_of_transformers(tmp_path):
    import torch

    from axcore.interop import from_hugging_face
    from axcore.module import functional

    hf = make()
    hf.save_pretrained(tmp_path)
    found = from_hugging_face(tmp_path)
    tokens = np.random.default_rng(2).integers(3, 110, size=(2, 11))
    wanted = hf(input_ids=torch.tensor(tokens)).logits.detach().numpy()
    own, _ = functional(found.model, found.state, jnp.asarray(tokens, jnp.int32), method="logits")
    np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=5e-5)
