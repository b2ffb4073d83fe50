"""`dit_peers.py`: diffusers' DiT of the same sizes, eager or by `torch.compile`."""

import sys
from collections.abc import Callable

import _dit_worker as own
import _tiny_worker as worker
import torch
from diffusers import DiTTransformer2DModel
from torch.nn import functional


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    torch.manual_seed(0)
    model = DiTTransformer2DModel(
        num_attention_heads=own.HEADS,
        attention_head_dim=own.DIM // own.HEADS,
        in_channels=own.CHANNELS,
        num_layers=own.LAYERS,
        sample_size=own.SIDE,
        patch_size=own.PATCH,
        num_embeds_ada_norm=own.CLASSES,
        norm_eps=1e-6,
    ).train()
    # Time and class have one embedding, as in the paper; diffusers has a copy in each block.
    blocks = model.transformer_blocks
    for block in blocks:
        block.norm1.emb = blocks[0].norm1.emb
    blocks[0].norm1.emb.class_embedder.dropout_prob = 0.0  # it would differ between blocks
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=own.RATE, betas=own.BETAS, weight_decay=own.WEIGHT_DECAY, fused=True
    )
    latents, classes = own.batch()
    data = torch.from_numpy(latents).permute(0, 3, 1, 2).contiguous()
    classes = torch.from_numpy(classes).long()
    called = torch.compile(model) if "--compile" in sys.argv else model

    def step() -> float:
        noise, time = torch.randn_like(data), torch.rand(own.PICTURES)
        share = time[:, None, None, None]
        mixed = share * data + (1 - share) * noise
        velocity = called(mixed, timestep=1000 * time, class_labels=classes).sample
        loss = functional.mse_loss(velocity, data - noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), own.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, sum(one.numel() for one in model.parameters())


if __name__ == "__main__":
    torch.set_num_threads(2)
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("torch", "diffusers"))
