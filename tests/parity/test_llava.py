"""LLaVA: logits and gradients of transformers' own, and weights both ways, for several texts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.parity

IMAGE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
NUM_SOFT, MARK = 4, 98
PIXELS = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
TOKENS = np.array([[1, *[MARK] * NUM_SOFT, 5, 6, 7], [1, 9, 8, *[MARK] * NUM_SOFT, 3]])


def make(text: str, layer: int) -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "mistral": transformers.MistralConfig,
    }[text]
    cfg = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE),
        text_config=kind(**TEXT),
        image_token_index=MARK,
        vision_feature_layer=layer,
        image_seq_length=NUM_SOFT,
    )
    model = transformers.LlavaForConditionalGeneration(cfg)
    for one in model.parameters():
        one.data += 0.05 * torch.randn_like(one)
    return model.eval()


def soft_rows() -> Any:
    """Returns the tokens as rows have them here: the soft ones numbered."""
    from axcore.data import with_soft_tokens

    rows = [with_soft_tokens(row, row, MARK, 1)[0] for row in TOKENS]
    return jnp.asarray(np.stack(rows), jnp.int32)


@pytest.mark.parametrize(
    ("text", "layer"), [("llama", -2), ("qwen2", -1), ("mistral", -2), ("llama", 1)]
)
def test_logits_and_gradients_are_those_of_transformers(text, layer, tmp_path):
    import torch

    from axcore.interop import from_hugging_face, to_hugging_face
    from axcore.module import functional

    hf = make(text, layer)
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    images = jnp.asarray(PIXELS.transpose(0, 2, 3, 1))

    @jax.jit
    def logits(state: Any, images: Any) -> Any:
        return functional(found.model, state, soft_rows(), inputs=images, method="logits")[0]

    pixels = torch.tensor(PIXELS, requires_grad=True)
    wanted = hf(input_ids=torch.tensor(TOKENS), pixel_values=pixels).logits
    np.testing.assert_allclose(
        logits(found.state, images), wanted.detach().numpy(), rtol=1e-4, atol=2e-5
    )
    weights = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    total = lambda state, images: jnp.sum(logits(state, images) * weights)  # noqa: E731
    of_state, of_image = jax.grad(total, argnums=(0, 1))(found.state, images)
    np.testing.assert_allclose(
        of_image, pixels.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-3, atol=2e-5
    )

    to_hugging_face(tmp_path / "back", found.config, found.state)
    back = type(hf).from_pretrained(tmp_path / "back").eval()
    again = back(input_ids=torch.tensor(TOKENS), pixel_values=pixels.detach()).logits
    np.testing.assert_array_equal(again.detach().numpy(), wanted.detach().numpy())
    # Gradients are arrays of the model's shapes, so both libraries can read them as weights.
    for one in hf.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad
    hf.save_pretrained(tmp_path / "gradients")
    expected = from_hugging_face(tmp_path / "gradients").state
    for (path, gradient), own in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(of_state), strict=True
    ):
        near = 2e-5 * float(np.abs(gradient).max()) + 1e-6
        np.testing.assert_allclose(own, gradient, rtol=1e-3, atol=near, err_msg=str(path))
