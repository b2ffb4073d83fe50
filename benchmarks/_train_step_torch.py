"""The PyTorch half of `gpu_train_step.py`: the same step by `torch.compile` and SDPA.

As in the axcore half, stored parameters and the optimizer's state are float32 and products are
bfloat16 (`torch.autocast`); AdamW with the same numbers, gradients clipped to a norm of 1. The loss
is computed in chunks of tokens, its gradients with it: three products, as by axcore, and logits of
one chunk in memory. Nothing is checkpointed.
"""

from typing import TYPE_CHECKING, Any

import torch
from _gpu import median_seconds
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from gpu_train_step import Size, Torch

DIM, HEADS, KEY_HEADS, HIDDEN, WORDS, THETA = 4096, 32, 8, 14_336, 128_256, 500_000.0
WIDTH = DIM // HEADS
CHUNK = 2048
"""Tokens whose logits are in memory at once."""


def missing_reason() -> str | None:
    """Return None where PyTorch sees a GPU, else why not."""
    return None if torch.cuda.is_available() else "a GPU for torch: it has no CUDA, or finds none"


def card() -> tuple[str, float]:
    """Return the GPU, and its memory in GiB."""
    return torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1] / 2**30


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return heads turned by their tokens' places; halves of a head are a pair."""
    cos, sin = turns
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Norm(nn.Module):
    """RMS normalisation, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x` in its dtype."""
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (normal * self.scale).to(x.dtype)


class Block(nn.Module):
    """A layer: attention and a gated feed-forward, each after a norm."""

    def __init__(self, *, repeats_heads: bool) -> None:
        super().__init__()
        self.repeats_heads = repeats_heads
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KEY_HEADS) * WIDTH, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.gate_up = nn.Linear(DIM, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the layer's output `[B, T, D]`."""
        rows, tokens, _ = x.shape
        heads = self.qkv(self.norms[0](x)).view(rows, tokens, -1, WIDTH).transpose(1, 2)
        q, k, v = heads.split((HEADS, KEY_HEADS, KEY_HEADS), dim=1)
        q, k = (rotated(one, turns).to(v.dtype) for one in (q, k))
        if self.repeats_heads:
            k, v = (one.repeat_interleave(HEADS // KEY_HEADS, dim=1) for one in (k, v))
        o = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=not self.repeats_heads
        )
        x = x + self.out(o.transpose(1, 2).reshape(rows, tokens, DIM))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def chunk_loss(x: Tensor, w: Tensor, targets: Tensor, num_tokens: int) -> tuple[Tensor, ...]:
    """Return the part of the mean loss that some tokens have, and its gradients by `x` and `w`."""
    logits = (x @ w.T).float()
    lse = torch.logsumexp(logits, dim=-1)
    loss = (lse - logits.gather(1, targets[:, None])[:, 0]).sum() / num_tokens
    is_target = torch.arange(logits.shape[1], device=x.device)[None] == targets[:, None]
    dlogits = ((torch.exp(logits - lse[:, None]) - is_target.float()) / num_tokens).to(x.dtype)
    return loss, dlogits @ w, dlogits.T @ x


class ChunkedLoss(torch.autograd.Function):
    """The mean loss of the output projection, whose gradients are computed with it."""

    compiled = staticmethod(torch.compile(chunk_loss))

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of `x [N, D]` by `w [V, D]`."""
        narrow, dw = w.to(x.dtype), torch.zeros_like(w)
        parts = zip(x.split(CHUNK), targets.split(CHUNK), strict=True)
        losses, dxs = [], []
        for rows, wanted in parts:
            loss, dx, part = ChunkedLoss.compiled(rows, narrow, wanted, len(x))
            losses.append(loss)
            dxs.append(dx)
            dw += part
        ctx.save_for_backward(torch.cat(dxs), dw)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients times that of the loss, which is 1 in a step."""
        dx, dw = ctx.saved_tensors
        return dx * dloss, dw * dloss, None


class Model(nn.Module):
    """So many layers between an embedding and an output projection of its own."""

    def __init__(self, layers: int, tokens: int, *, repeats_heads: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM)
        self.blocks = nn.ModuleList(Block(repeats_heads=repeats_heads) for _ in range(layers))
        self.norm = Norm()
        self.head = nn.Linear(DIM, WORDS, bias=False)
        speeds = THETA ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        angles = torch.outer(torch.arange(tokens), speeds)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the hidden vectors of all tokens, before the output projection."""
        x = self.embedding(tokens).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        hidden: Tensor = self.norm(x)
        return hidden.flatten(0, 1)


def measure(case: "Torch", size: "Size") -> dict[str, Any]:
    """Return the time of a step and the most memory that it took."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = Model(size.layers, size.tokens, repeats_heads=case.repeats_heads)
        tokens = torch.randint(0, WORDS, (size.rows, size.tokens))
    targets = tokens.roll(-1, dims=1).flatten()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    hidden_of = torch.compile(model, mode="max-autotune-no-cudagraphs" if case.is_tuned else None)

    def step() -> Tensor:
        with (
            torch.autocast("cuda", dtype=torch.bfloat16),
            sdpa_kernel(getattr(SDPBackend, case.attention)),
        ):
            hidden = hidden_of(tokens)
        loss: Tensor = ChunkedLoss.apply(hidden, model.head.weight, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    seconds = median_seconds(step, lambda _: torch.cuda.synchronize(), repeats=3)
    return {
        "step_s": seconds,
        "tokens_per_s": size.rows * size.tokens / seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "is_finite": bool(torch.isfinite(step())),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
    }
