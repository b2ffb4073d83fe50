"""`vit_peers.py`: transformers' ViT of the same sizes, eager or by `torch.compile`."""

import sys
from collections.abc import Callable

import _tiny_worker as worker
import _vit_worker as own
import torch
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    torch.manual_seed(0)
    cfg = ViTConfig(
        hidden_size=own.DIM,
        num_hidden_layers=own.LAYERS,
        num_attention_heads=own.HEADS,
        intermediate_size=own.HIDDEN,
        image_size=own.SIDE,
        patch_size=own.PATCH,
        num_labels=own.CLASSES,
        attn_implementation="sdpa",
    )
    model = ViTForImageClassification(cfg).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=own.RATE, betas=own.BETAS, weight_decay=own.WEIGHT_DECAY, fused=True
    )
    pictures, labels = own.batch()
    inputs = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    targets = torch.from_numpy(labels).long()
    called = torch.compile(model) if "--compile" in sys.argv else model

    def step() -> float:
        loss = functional.cross_entropy(called(inputs).logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), own.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, sum(one.numel() for one in model.parameters())


if __name__ == "__main__":
    torch.set_num_threads(2)
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("torch", "transformers"))
