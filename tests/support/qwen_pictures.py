"""Small Qwen-VL models of transformers: rows with pictures, and their patches."""

from typing import Any

import numpy as np
from picture_parity import shaken, soft_rows

START, END, MARK, VIDEO = 117, 118, 119, 116
PATCH, MERGE = 4, 2
HEIGHT, WIDTH = 16, 32
PIXELS = np.random.default_rng(0).normal(size=(2, HEIGHT, WIDTH, 3)).astype(np.float32)
SOFT = [START, *[MARK] * 8, END]
TOKENS = np.array([[1, *SOFT, 5, 6, 7, 8], [1, 9, 8, *SOFT, 3, 4]])
ROWS = soft_rows(TOKENS, MARK)
TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 120,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MARKS = {
    "image_token_id": MARK,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "video_token_id": VIDEO,
}


def make(name: str, image: dict[str, Any], text: dict[str, Any], **values: Any) -> Any:
    """Return a model with random weights, none of them one or zero.

    Args:
        name: What its class begins with.
        image: Fields of its encoder.
        text: Fields of its language model.
        **values: Further fields.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}Config")
    cfg = kind(vision_config=image, text_config=text, **MARKS, **values)
    return shaken(getattr(transformers, f"{name}ForConditionalGeneration")(cfg))


def patches_of(images: Any) -> Any:
    """Return the patches of pictures as transformers' processor cuts them, all in one array."""
    import torch

    count, height, width, channels = images.shape
    x = images.permute(0, 3, 1, 2).reshape(count, 1, channels, height, width)
    x = torch.cat([x, x], 1)  # frames
    rows, columns = height // PATCH, width // PATCH
    x = x.reshape(count, 2, channels, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(count * rows * columns, -1)


def logits_of(model: Any, images: Any) -> Any:
    """Return the logits of `TOKENS` with a picture in each row."""
    import torch

    tokens = torch.tensor(TOKENS)
    return model(
        input_ids=tokens,
        pixel_values=patches_of(images),
        image_grid_thw=torch.tensor([[1, HEIGHT // PATCH, WIDTH // PATCH]] * 2),
        mm_token_type_ids=(tokens == MARK).int(),
    ).logits
