"""The model of `recovery_peers.py` in torch, with the sizes of axcore's `small_experiment`."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCAB, DIM, LAYERS, HEADS, HIDDEN, TOKENS, ROWS = 264, 32, 2, 2, 64, 32, 4


class Model(nn.Module):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS - 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss of each token after those before it."""
        x = self.layers(self.embedding(tokens[:, :-1]), mask=self.mask, is_causal=True)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def random_tokens() -> Tensor:
    """Return a batch of one process."""
    return torch.randint(VOCAB, (ROWS, TOKENS))


def state_size(model: nn.Module) -> dict[str, int]:
    """Return how many parameters there are, and the bytes of them with AdamW's two moments."""
    parameters = sum(one.numel() for one in model.parameters())
    return {"parameters": parameters, "bytes": 12 * parameters}  # float32
