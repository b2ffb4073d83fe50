"""Models of pictures: logits and gradients of transformers' own, and weights both ways."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.parity

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**SIZES, "hidden_size": 48, "vocab_size": 99, "max_position_embeddings": 6}
IMAGE = {**SIZES, "hidden_size": 48, "image_size": 16, "patch_size": 8}

TOKENS = np.array([[97, 5, 6, 98, 98, 98], [97, 3, 4, 7, 8, 98]])
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
PIXELS = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)


def make(name: str) -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers

    torch.manual_seed(0)
    tokens = {"bos_token_id": 97, "eos_token_id": 98, "pad_token_id": 0}
    if name == "vit":
        cfg = transformers.ViTConfig(**IMAGE, num_labels=5)
        model = transformers.ViTForImageClassification(cfg)
    elif name == "clip":
        cfg = transformers.CLIPConfig(
            text_config={**TEXT, **tokens, "hidden_size": 32},
            vision_config=IMAGE,
            projection_dim=24,
        )
        model = transformers.CLIPModel(cfg)
    else:
        cfg = transformers.SiglipConfig(text_config={**TEXT, **tokens}, vision_config=IMAGE)
        model = transformers.SiglipModel(cfg)
    for one in model.parameters():
        one.data += 0.05 * torch.randn_like(one)
    return model.eval()


def logits_of(model: Any, pixels: Any, tokens: Any) -> Any:
    if type(model).__name__.startswith("ViT"):
        return model(pixels).logits
    return model(pixel_values=pixels, input_ids=tokens).logits_per_image


def inputs_of(name: str) -> tuple[Any, ...]:
    image = jnp.asarray(PIXELS.transpose(0, 2, 3, 1))
    tokens, mask = jnp.asarray(TOKENS), jnp.asarray(MASK)
    return {"vit": (image,), "clip": (image, tokens, mask), "siglip": (image, tokens)}[name]


@pytest.mark.parametrize("name", ["vit", "clip", "siglip"])
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path):
    import torch
    from safetensors.numpy import load_file

    from axcore.interop import from_hugging_face, to_hugging_face
    from axcore.module import functional

    hf = make(name)
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    inputs = inputs_of(name)

    def logits(state: Any, image: Any) -> Any:
        result, _ = functional(found.model, state, image, *inputs[1:])
        return result if name == "vit" else result.logits

    pixels = torch.tensor(PIXELS, requires_grad=True)
    wanted = logits_of(hf, pixels, torch.tensor(TOKENS))
    np.testing.assert_allclose(
        logits(found.state, inputs[0]), wanted.detach().numpy(), rtol=1e-4, atol=1e-5
    )
    weights = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    total = lambda state, image: jnp.sum(logits(state, image) * weights)  # noqa: E731
    of_state, of_image = jax.grad(total, argnums=(0, 1))(found.state, inputs[0])
    np.testing.assert_allclose(
        of_image, pixels.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-3, atol=1e-5
    )
    to_hugging_face(tmp_path / "back", found.config, found.state)
    back = type(hf).from_pretrained(tmp_path / "back").eval()
    again = logits_of(back, torch.tensor(PIXELS), torch.tensor(TOKENS))
    np.testing.assert_array_equal(again.detach().numpy(), wanted.detach().numpy())
    # Gradients are arrays of the model's shapes, so both libraries can write them as weights.
    to_hugging_face(tmp_path / "gradients", found.config, of_state)
    for one in hf.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad
    hf.save_pretrained(tmp_path / "wanted")
    written, own = (
        load_file(tmp_path / one / "model.safetensors") for one in ("gradients", "wanted")
    )
    assert written.keys() == own.keys()
    for key, gradient in own.items():
        near = 2e-5 * float(np.abs(gradient).max()) + 1e-6
        np.testing.assert_allclose(written[key], gradient, rtol=1e-3, atol=near, err_msg=key)
