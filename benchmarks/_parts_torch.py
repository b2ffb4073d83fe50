"""`tiny_parts.py`: parts of `tiny`'s step in PyTorch, eager or by `torch.compile`."""

import sys
from collections.abc import Callable
from typing import Any

import _tiny_worker as worker
import numpy as np
import torch
from _tiny_torch import rotated, train_step
from torch import Tensor
from torch.nn import functional

TOKENS, TARGETS = (torch.from_numpy(one).long() for one in worker.batch())
ANGLES = torch.from_numpy(worker.angles())
COS, SIN = ANGLES.cos(), ANGLES.sin()


def array(*shape: int) -> Tensor:
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return torch.tensor(0.05 * values, dtype=torch.float32, requires_grad=True)


def of_rows(*shape: int) -> Tensor:
    return array(worker.ROWS, worker.TOKENS, *shape)


def both_passes(fn: Callable[..., Any], *arrays: Tensor) -> Callable[[], None]:
    """Return a call of the function and of its gradient."""
    forward = torch.compile(fn) if "--compile" in sys.argv else fn
    with torch.no_grad():
        grads = [torch.ones_like(one) for one in fn(*arrays)]

    def run() -> None:
        for one in arrays:
            one.grad = None
        torch.autograd.backward(forward(*arrays), grads)

    return run


def products() -> Callable[[], None]:
    sizes = worker.PRODUCTS
    xs = [of_rows(inputs) for inputs, _ in sizes]
    ws = [array(outputs, inputs) for inputs, outputs in sizes]

    def run(*arrays: Tensor) -> tuple[Tensor, ...]:
        xs, ws = arrays[: len(sizes)], arrays[len(sizes) :]
        return tuple(functional.linear(x, w) for x, w in zip(xs, ws, strict=True))

    return both_passes(run, *xs, *ws)


def causal(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return (o.transpose(1, 2).contiguous(),)


def optimizer() -> Callable[[], None]:
    params = [array(*size) for size in worker.PRODUCTS for _ in range(worker.LAYERS)]
    params += [array(worker.WORDS, worker.DIM) for _ in range(2)]
    by = torch.optim.AdamW(
        params,
        lr=worker.RATE,
        betas=worker.BETAS,
        weight_decay=worker.WEIGHT_DECAY,
        fused=True,
    )
    for param in params:
        param.grad = param.detach().clone()

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(params, worker.CLIP_NORM)
        by.step()

    return run


def parts() -> dict[str, Callable[[], None]]:
    hidden = [of_rows(worker.HIDDEN) for _ in range(2)]
    queries = of_rows(worker.HEADS, worker.WIDTH)
    keys = [of_rows(worker.KEY_HEADS, worker.WIDTH) for _ in range(2)]
    x, table = of_rows(worker.DIM), array(worker.WORDS, worker.DIM)
    turns = COS[:, None], SIN[:, None]

    def loss(x: Tensor, head: Tensor) -> tuple[Tensor]:
        logits = functional.linear(x, head).flatten(0, 1)
        return (functional.cross_entropy(logits, TARGETS.flatten()),)

    return {
        "products": products(),
        "attention": both_passes(causal, queries, *keys),
        "rotary": both_passes(
            lambda q, k: (rotated(q, *turns), rotated(k, *turns)), queries, keys[0]
        ),
        "gate": both_passes(lambda gate, up: (functional.silu(gate) * up,), *hidden),
        "norm": both_passes(
            lambda x, scale: (functional.rms_norm(x, x.shape[-1:], scale),), x, array(worker.DIM)
        ),
        "loss": both_passes(loss, x, table),
        "embedding": both_passes(lambda table: (functional.embedding(TOKENS, table),), table),
        "optimizer": optimizer(),
        "step": train_step()[0],
    }


if __name__ == "__main__":
    worker.use_one_core()
    torch.set_num_threads(1)
    worker.serve_parts(parts())
