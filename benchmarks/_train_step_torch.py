"""The PyTorch half of `gpu_train_step.py`: the same step by `torch.compile` and SDPA.

As in the axcore half, stored parameters and the optimizer's state are float32 and products are
bfloat16 (`torch.autocast`); AdamW with the same numbers, gradients clipped to a norm of 1.
"""

from typing import Any

import torch
from _gpu import median_seconds
from torch import Tensor, nn
from torch.nn import functional

DIM, HEADS, KEY_HEADS, HIDDEN, WORDS, THETA = 4096, 32, 8, 14_336, 128_256, 500_000.0
WIDTH = DIM // HEADS


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Returns heads turned by their tokens' places; halves of a head are a pair."""
    cos, sin = turns
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Norm(nn.Module):
    """RMS normalisation, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised `x` in its dtype."""
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (normal * self.scale).to(x.dtype)


class Block(nn.Module):
    """A layer: attention and a gated feed-forward, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KEY_HEADS) * WIDTH, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.gate_up = nn.Linear(DIM, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Returns the layer's output `[B, T, D]`."""
        rows, tokens, _ = x.shape
        heads = self.qkv(self.norms[0](x)).view(rows, tokens, -1, WIDTH).transpose(1, 2)
        q, k, v = heads.split((HEADS, KEY_HEADS, KEY_HEADS), dim=1)
        q, k = (rotated(one, turns).to(v.dtype) for one in (q, k))
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).reshape(rows, tokens, DIM))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    """So many layers between an embedding and an output projection of its own."""

    def __init__(self, layers: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = Norm()
        self.head = nn.Linear(DIM, WORDS, bias=False)
        speeds = THETA ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        angles = torch.outer(torch.arange(tokens), speeds)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss."""
        x = self.embedding(tokens).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def measure(size: dict[str, int]) -> dict[str, Any]:
    """Returns the time of a step and the most memory that it took."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = Model(size["layers"], size["tokens"])
        tokens = torch.randint(0, WORDS, (size["rows"], size["tokens"]))
    targets = tokens.roll(-1, dims=1)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    loss_of = torch.compile(model)

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    try:
        seconds = median_seconds(step, lambda _: torch.cuda.synchronize(), repeats=3)
    except torch.cuda.OutOfMemoryError:
        return {"failed": "out of memory"}
    return {
        "step_s": seconds,
        "tokens_per_s": size["rows"] * size["tokens"] / seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "is_finite": bool(torch.isfinite(step())),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
    }
