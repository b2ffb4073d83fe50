"""`tiny_peers.py`: the same model in the style of nanoGPT, eager or by `torch.compile`."""

import sys
from collections.abc import Callable

import _tiny_worker as worker
import torch
from torch import Tensor, nn
from torch.nn import functional


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Block(nn.Module):
    """Attention and a gated feed-forward, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(worker.DIM), nn.RMSNorm(worker.DIM)
        self.q = nn.Linear(worker.DIM, worker.HEADS * worker.WIDTH, bias=False)
        self.k = nn.Linear(worker.DIM, worker.KEY_HEADS * worker.WIDTH, bias=False)
        self.v = nn.Linear(worker.DIM, worker.KEY_HEADS * worker.WIDTH, bias=False)
        self.out = nn.Linear(worker.DIM, worker.DIM, bias=False)
        self.gate = nn.Linear(worker.DIM, worker.HIDDEN, bias=False)
        self.up = nn.Linear(worker.DIM, worker.HIDDEN, bias=False)
        self.down = nn.Linear(worker.HIDDEN, worker.DIM, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm_1(x)
        q, k, v = (
            linear(normed).unflatten(-1, (-1, worker.WIDTH)).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        normed = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Layers between an embedding and an output projection of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(worker.WORDS, worker.DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(worker.LAYERS))
        self.norm = nn.RMSNorm(worker.DIM)
        self.head = nn.Linear(worker.DIM, worker.WORDS, bias=False)
        angles = torch.from_numpy(worker.angles())
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=worker.RATE,
        betas=worker.BETAS,
        weight_decay=worker.WEIGHT_DECAY,
        fused=True,
    )
    tokens, targets = (torch.from_numpy(one).long() for one in worker.batch())
    loss_of = torch.compile(model) if "--compile" in sys.argv else model

    def step() -> float:
        loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), worker.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, sum(param.numel() for param in model.parameters())


if __name__ == "__main__":
    torch.set_num_threads(2)
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("torch",))
