"""DINOv2: vectors, logits and gradients of transformers' own, and weights both ways."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.parity

SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "mlp_ratio": 2,
    "image_size": 24,
    "patch_size": 4,
    "num_labels": 5,
}
CASES = {
    "vectors": ("Dinov2Model", {}),
    "classifier": ("Dinov2ForImageClassification", {}),
    "no mask token": ("Dinov2Model", {"use_mask_token": False}),
    "gated": ("Dinov2ForImageClassification", {"use_swiglu_ffn": True}),
    "registers": ("Dinov2WithRegistersModel", {}),
    "classifier with registers": ("Dinov2WithRegistersForImageClassification", {}),
}


def make(name: str) -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers

    torch.manual_seed(0)
    class_name, fields = CASES[name]
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**SIZES, **fields))
    for one in model.parameters():
        one.data += 0.1 * torch.randn_like(one)
    return model.eval()


def pixels_of(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, 3, height, width)).astype(np.float32)


def result_of(found: Any, pixels: np.ndarray, state: Any = None) -> Any:
    """Returns logits, or all tokens of a model without a head."""
    from axcore.config import update_config
    from axcore.module import functional

    height, width = pixels.shape[2:]
    cfg = update_config(found.config, {"encoder.height": height, "encoder.width": width})
    image = jnp.asarray(pixels).transpose(0, 2, 3, 1)
    method = "forward" if hasattr(cfg, "num_classes") else "tokens"
    state = found.state if state is None else state
    return functional(cfg.build(), state, image, method=method)[0]


def wanted_of(model: Any, pixels: Any) -> Any:
    found = model(pixels)
    return found.logits if "logits" in found else found.last_hidden_state


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_transformers(name, tmp_path):
    import torch
    from safetensors.numpy import load_file

    from axcore.interop import from_hugging_face, to_hugging_face

    hf = make(name)
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    pixels = pixels_of(24, 24)
    wanted = wanted_of(hf, torch.tensor(pixels))
    np.testing.assert_allclose(
        result_of(found, pixels), wanted.detach().numpy(), rtol=1e-4, atol=2e-5
    )
    to_hugging_face(tmp_path / "back", found.config, found.state)
    before, after = (load_file(tmp_path / one / "model.safetensors") for one in ("hf", "back"))
    assert before.keys() == after.keys()
    assert all((before[one] == after[one]).all() for one in before)
    back, said = type(hf).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(said.values()), said
    assert torch.equal(wanted_of(back.eval(), torch.tensor(pixels)), wanted)
    # Gradients are arrays of the model's shapes, so both libraries can write them as weights.
    weights = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    total = lambda state: jnp.sum(result_of(found, pixels, state) * weights)  # noqa: E731
    to_hugging_face(tmp_path / "gradients", found.config, jax.grad(total)(found.state))
    for one in hf.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad
    hf.save_pretrained(tmp_path / "wanted")
    written, own = (
        load_file(tmp_path / one / "model.safetensors") for one in ("gradients", "wanted")
    )
    for key, gradient in own.items():
        # A bias of keys changes no logit, so its gradient is rounding alone.
        near = 2e-5 * float(np.abs(gradient).max()) + 5e-6
        np.testing.assert_allclose(written[key], gradient, rtol=1e-3, atol=near, err_msg=key)


@pytest.mark.parametrize("size", [(12, 12), (16, 40), (48, 28), (20, 24)])
@pytest.mark.parametrize("name", ["vectors", "classifier with registers"])
def test_positions_are_interpolated_as_transformers_does(name, size, tmp_path):
    import torch

    from axcore.interop import from_hugging_face

    hf = make(name)
    hf.save_pretrained(tmp_path / "hf")
    pixels = pixels_of(*size)
    with torch.no_grad():
        wanted = wanted_of(hf, torch.tensor(pixels))
    found = result_of(from_hugging_face(tmp_path / "hf"), pixels)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=2e-5)
