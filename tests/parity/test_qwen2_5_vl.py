"""Qwen2.5-VL: logits and gradients of transformers' own, weights both ways, and how it serves."""

import json
from typing import Any

import jax
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
TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 120,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
    "bos_token_id": 1,
    "eos_token_id": 2,
}
START, END, MARK = 117, 118, 119
HEIGHT, WIDTH = 16, 32
GRID = (2, 4)
PIXELS = np.random.default_rng(0).normal(size=(2, HEIGHT, WIDTH, 3)).astype(np.float32)
SOFT = [START, *[MARK] * 8, END]
TOKENS = np.array([[1, *SOFT, 5, 6, 7, 8], [1, 9, 8, *SOFT, 3, 4]])


def make() -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers

    torch.manual_seed(0)
    cfg = transformers.Qwen2_5_VLConfig(
        vision_config=IMAGE,
        text_config=TEXT,
        image_token_id=MARK,
        vision_start_token_id=START,
        vision_end_token_id=END,
        video_token_id=116,
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(cfg)
    for one in model.parameters():
        one.data += 0.05 * torch.randn_like(one)
    return model.eval()


def patches_of(images: Any) -> Any:
    """Returns the patches of pictures as transformers' processor cuts them, all in one array."""
    import torch

    size, merge = IMAGE["patch_size"], 2
    count, height, width, channels = images.shape
    x = images.permute(0, 3, 1, 2).reshape(count, 1, channels, height, width)
    x = torch.cat([x, x], 1)  # frames
    rows, columns = height // size, width // size
    x = x.reshape(count, 2, channels, rows // merge, merge, size, columns // merge, merge, size)
    x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(count * rows * columns, -1)


def logits_of(model: Any, images: Any) -> Any:
    import torch

    tokens = torch.tensor(TOKENS)
    grid = torch.tensor([[1, HEIGHT // 4, WIDTH // 4]] * 2)
    types = (tokens == MARK).int()
    return model(
        input_ids=tokens,
        pixel_values=patches_of(images),
        image_grid_thw=grid,
        mm_token_type_ids=types,
    ).logits


def soft_rows() -> Any:
    """Returns the tokens as rows have them here: the soft ones numbered."""
    from axcore.data import with_soft_tokens

    rows = [with_soft_tokens(row, row, MARK, 1)[0] for row in TOKENS]
    return jnp.asarray(np.stack(rows), jnp.int32)


def test_logits_and_gradients_are_those_of_transformers(tmp_path):
    import torch
    from axl_vision.models import with_picture_size

    from axcore.interop import from_hugging_face, to_hugging_face
    from axcore.module import functional

    hf = make()
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    model = with_picture_size(found.config, HEIGHT, WIDTH).build()

    @jax.jit
    def logits(state: Any, images: Any) -> Any:
        return functional(model, state, soft_rows(), inputs=images, method="logits")[0]

    pixels = torch.tensor(PIXELS, requires_grad=True)
    wanted = logits_of(hf, pixels)
    own = logits(found.state, jnp.asarray(PIXELS))
    np.testing.assert_allclose(own, wanted.detach().numpy(), rtol=1e-4, atol=5e-5)
    weights = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    total = lambda state, images: jnp.sum(logits(state, images) * weights)  # noqa: E731
    of_state, of_image = jax.grad(total, argnums=(0, 1))(found.state, jnp.asarray(PIXELS))
    np.testing.assert_allclose(of_image, pixels.grad.numpy(), rtol=1e-3, atol=1e-4)

    to_hugging_face(tmp_path / "back", found.config, found.state)
    back = type(hf).from_pretrained(tmp_path / "back").eval()
    again = logits_of(back, pixels.detach())
    np.testing.assert_array_equal(again.detach().numpy(), wanted.detach().numpy())
    # Gradients are arrays of the model's shapes, so both libraries can read them as weights.
    for one in hf.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad
    hf.save_pretrained(tmp_path / "gradients")
    expected = from_hugging_face(tmp_path / "gradients").state
    for (path, gradient), mine in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(of_state), strict=True
    ):
        near = 5e-5 * float(np.abs(gradient).max()) + 1e-6
        np.testing.assert_allclose(mine, gradient, rtol=1e-3, atol=near, err_msg=str(path))


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
