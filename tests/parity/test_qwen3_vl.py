"""Qwen3-VL: logits and gradients of transformers' own, and weights both ways."""

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
    "deepstack_visual_indexes": [0, 2],
    "num_position_embeddings": 25,
    "patch_size": 4,
}
ROPE = {
    "rope_type": "default",
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_layers", [2, 4])
def test_logits_and_gradients_are_those_of_transformers(num_layers, tied, tmp_path):
    from axl_vision.models import with_picture_size
    from picture_parity import check_is_the_same
    from qwen_pictures import HEIGHT, PIXELS, ROWS, TEXT, WIDTH, logits_of, make

    text = {**TEXT, "num_hidden_layers": num_layers, "head_dim": 16, "rope_parameters": ROPE}
    hf = make("Qwen3VL", IMAGE, text, tie_word_embeddings=tied)
    sized = lambda cfg: with_picture_size(cfg, HEIGHT, WIDTH)  # noqa: E731
    check_is_the_same(hf, logits_of, PIXELS, ROWS, tmp_path, sized=sized, near=5e-5)


def with_published_experts(folder):
    """Experts with inputs first, as published files have them: transformers reads both."""
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    save_file(tensors, path, metadata={"format": "pt"})


def test_experts_are_those_of_transformers(tmp_path):
    from axl_vision.models import with_picture_size
    from picture_parity import check_is_the_same
    from qwen_pictures import HEIGHT, PIXELS, ROWS, TEXT, WIDTH, logits_of, make

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    hf = make("Qwen3VLMoe", IMAGE, {**TEXT, **experts, "head_dim": 16, "rope_parameters": ROPE})
    check_is_the_same(
        hf,
        logits_of,
        PIXELS,
        ROWS,
        tmp_path,
        sized=lambda cfg: with_picture_size(cfg, HEIGHT, WIDTH),
        near=5e-5,
        saved=with_published_experts,
    )


def test_text_alone_is_that_of_transformers(tmp_path):
    import torch
    from qwen_pictures import TEXT, make

    from axcore.interop import from_hugging_face
    from axcore.module import functional

    hf = make("Qwen3VL", IMAGE, {**TEXT, "head_dim": 16, "rope_parameters": ROPE})
    hf.save_pretrained(tmp_path)
    found = from_hugging_face(tmp_path)
    tokens = np.random.default_rng(2).integers(3, 110, size=(2, 11))
    wanted = hf(input_ids=torch.tensor(tokens)).logits.detach().numpy()
    own, _ = functional(found.model, found.state, jnp.asarray(tokens, jnp.int32), method="logits")
    np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=5e-5)
