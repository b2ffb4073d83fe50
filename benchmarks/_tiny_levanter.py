"""`tiny_peers.py`: the same model in Levanter, whose Llama it is, its step as its trainer's.

Layers are unrolled and nothing is recomputed, which is faster at this size than its defaults. Its
loss leaves out the last token of a row, and is averaged here, since its own mean over a mask needs
an older jax.
"""

from typing import Any

import _tiny_jax as shared
import _tiny_worker as worker
import equinox as eqx
import haliax
import jax
from levanter.layers.attention import AttentionMask
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample, compute_next_token_loss

CONFIG = LlamaConfig(
    seq_len=worker.TOKENS,
    hidden_dim=worker.DIM,
    intermediate_dim=worker.HIDDEN,
    num_layers=worker.LAYERS,
    num_heads=worker.HEADS,
    num_kv_heads=worker.KEY_HEADS,
    gradient_checkpointing=False,
    scan_layers=False,
)


def examples() -> LmExample:
    rows = haliax.Axis("batch", worker.ROWS)
    tokens = haliax.named(shared.TOKENS, (rows, CONFIG.Pos))
    mask = LmExample.causal_loss_mask(CONFIG.Pos).broadcast_axis(rows)
    return LmExample(tokens=tokens, loss_mask=mask, attn_mask=AttentionMask.causal())


@eqx.filter_value_and_grad
def loss_of(model: Any, batch: LmExample) -> jax.Array:
    losses = compute_next_token_loss(model, batch, reduction=None)
    return (haliax.sum(losses) / haliax.sum(batch.loss_mask)).scalar()


@haliax.named_jit(donate_args=(True, True, False))
def train_step(model: Any, opt_state: Any, batch: LmExample) -> tuple[Any, Any, jax.Array]:
    loss, grads = loss_of(model, batch)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, opt_state = shared.optimizer().update(grads, opt_state, params)
    return eqx.apply_updates(model, updates), opt_state, loss


def main() -> None:
    model = CONFIG.build(haliax.Axis("vocab", worker.WORDS), key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    opt_state = shared.optimizer().init(params)
    batch = examples()

    def step() -> float:
        nonlocal model, opt_state
        model, opt_state, loss = train_step(model, opt_state, batch)
        return float(loss)

    worker.serve(step, num_params=num_params, packages=("levanter", "haliax", "jax", "optax"))


if __name__ == "__main__":
    main()
