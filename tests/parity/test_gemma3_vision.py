"""Gemma 3 with pictures: logits, losses and gradients of transformers' own, weights both ways."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.parity

IMAGE = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 24,
    "patch_size": 4,
    "vision_use_head": False,
}
TEXT = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
MARK, NUM_SOFT = 263, 9
PIXELS = np.random.default_rng(0).normal(size=(2, 2, 24, 24, 3)).astype(np.float32)
SOFT = [8, *[MARK] * NUM_SOFT, 9]
TOKENS = np.array([[2, 5, *SOFT, 6, *SOFT, 7, 11], [2, *SOFT, *SOFT, 6, 5, 7, 11]])
"""Two pictures a row, which are longer than the window."""


def make() -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers
    from picture_parity import shaken

    torch.manual_seed(0)
    cfg = transformers.Gemma3Config(
        text_config=TEXT,
        vision_config=IMAGE,
        mm_tokens_per_image=NUM_SOFT,
        image_token_index=MARK,
        boi_token_index=8,
        eoi_token_index=9,
    )
    return shaken(transformers.Gemma3ForConditionalGeneration(cfg).float())


def outputs_of(model: Any, images: Any, **options: Any) -> Any:
    import torch

    tokens = torch.tensor(TOKENS)
    return model(
        input_ids=tokens,
        pixel_values=images.flatten(0, 1).permute(0, 3, 1, 2),
        token_type_ids=(tokens == MARK).long(),
        **options,
    )


def test_logits_and_gradients_are_those_of_transformers(tmp_path):
    from picture_parity import check_is_the_same, soft_rows

    logits_of = lambda model, images: outputs_of(model, images).logits  # noqa: E731
    rows = soft_rows(TOKENS, MARK)
    check_is_the_same(make(), logits_of, PIXELS, rows, tmp_path, floor=3e-6)


def test_the_loss_of_a_chat_is_that_of_transformers(tmp_path):
    """Targets are tokens of text; what is soft is never predicted."""
    import jax.numpy as jnp
    import torch
    from picture_parity import soft_rows

    from axcore.interop import from_hugging_face
    from axcore.module import functional

    hf = make()
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    labels = np.where((TOKENS == MARK) | (TOKENS == 8), -100, TOKENS)
    wanted = outputs_of(hf, torch.tensor(PIXELS), labels=torch.tensor(labels)).loss
    batch = {
        "tokens": soft_rows(TOKENS, MARK)[:, :-1],
        "targets": jnp.asarray(np.maximum(labels[:, 1:], 0), jnp.int32),
        "positions": jnp.broadcast_to(jnp.arange(TOKENS.shape[1] - 1), labels[:, 1:].shape),
        "loss_weights": jnp.asarray(labels[:, 1:] >= 0, jnp.float32),
        "image": jnp.asarray(PIXELS),
    }
    (total, weight), _ = functional(found.model, found.state, batch)
    np.testing.assert_allclose(total / weight, wanted.item(), rtol=1e-5)


def test_pixels_are_those_of_the_processor():
    """Within two steps of a byte, as both round bytes once they are scaled."""
    import io

    from axl_attention.models import gemma3
    from axl_vision.encoder import NormalizePixels
    from axl_vision.models import gemma3_vision
    from PIL import Image
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    from axcore.module import functional

    random = np.random.default_rng(3)
    picture = Image.fromarray(random.integers(0, 255, (30, 50, 3), np.uint8))
    file = io.BytesIO()
    picture.save(file, "png")
    cfg = gemma3_vision(gemma3("toy"), "toy", image_size=24, patch_size=4, num_soft_tokens=9)
    (own,) = cfg.encoder.input_feature().build().make({"file": file.getvalue()}, None).values()
    own, _ = functional(NormalizePixels.Config().build(), {}, own[None])
    processor = Gemma3ImageProcessorPil(size={"height": 24, "width": 24})
    wanted = processor(picture, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(own[0], wanted.transpose(1, 2, 0), atol=2.1 / 255)
