"""LLaVA: logits and gradients of transformers' own, and weights both ways, for several texts."""

from typing import Any

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
PIXELS = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype(np.float32)
TOKENS = np.array([[1, *[MARK] * NUM_SOFT, 5, 6, 7], [1, 9, 8, *[MARK] * NUM_SOFT, 3]])


def make(text: str, layer: int) -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers
    from picture_parity import shaken

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
    return shaken(transformers.LlavaForConditionalGeneration(cfg))


def logits_of(model: Any, images: Any) -> Any:
    import torch

    pixels = images.permute(0, 3, 1, 2)
    return model(input_ids=torch.tensor(TOKENS), pixel_values=pixels).logits


@pytest.mark.parametrize(
    ("text", "layer"), [("llama", -2), ("qwen2", -1), ("mistral", -2), ("llama", 1)]
)
def test_logits_and_gradients_are_those_of_transformers(text, layer, tmp_path):
    from picture_parity import check_is_the_same, soft_rows

    check_is_the_same(make(text, layer), logits_of, PIXELS, soft_rows(TOKENS, MARK), tmp_path)
