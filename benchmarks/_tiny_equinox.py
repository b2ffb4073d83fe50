"""`tiny_peers.py`: the same model in Equinox, its step as Equinox's documentation writes it."""

from typing import Any

import _tiny_jax as shared
import _tiny_worker as worker
import equinox as eqx
import jax


class Block(eqx.Module):
    """Attention and a gated feed-forward, each after a norm; of one row."""

    norms: list[eqx.nn.RMSNorm]
    linears: dict[str, eqx.nn.Linear]

    def __init__(self, key: jax.Array) -> None:
        dim, heads, keys = worker.DIM, worker.HEADS * worker.WIDTH, worker.KEY_HEADS * worker.WIDTH
        sizes = {
            "q": (dim, heads),
            "k": (dim, keys),
            "v": (dim, keys),
            "out": (heads, dim),
            "gate": (dim, worker.HIDDEN),
            "up": (dim, worker.HIDDEN),
            "down": (worker.HIDDEN, dim),
        }
        self.norms = [eqx.nn.RMSNorm(dim, use_bias=False) for _ in range(2)]
        self.linears = {
            name: eqx.nn.Linear(*size, use_bias=False, key=jax.random.fold_in(key, i))
            for i, (name, size) in enumerate(sizes.items())
        }

    def __call__(self, x: jax.Array) -> jax.Array:
        first, second = (jax.vmap(norm) for norm in self.norms)
        by = {name: jax.vmap(linear) for name, linear in self.linears.items()}
        normed = first(x)
        x = x + by["out"](shared.attend(by["q"](normed), by["k"](normed), by["v"](normed)))
        normed = second(x)
        return x + by["down"](jax.nn.silu(by["gate"](normed)) * by["up"](normed))


class Model(eqx.Module):
    """Layers between an embedding and an output projection of its own; of one row."""

    embedding: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.RMSNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, worker.LAYERS + 2)
        self.embedding = eqx.nn.Embedding(worker.WORDS, worker.DIM, key=keys[0])
        self.blocks = [Block(key) for key in keys[1:-1]]
        self.norm = eqx.nn.RMSNorm(worker.DIM, use_bias=False)
        self.head = eqx.nn.Linear(worker.DIM, worker.WORDS, use_bias=False, key=keys[-1])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


@eqx.filter_value_and_grad
def loss_of(model: Model) -> jax.Array:
    return shared.cross_entropy(jax.vmap(model)(shared.TOKENS))


@eqx.filter_jit(donate="all")
def train_step(model: Model, opt_state: Any) -> tuple[Model, Any, jax.Array]:
    loss, grads = loss_of(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, opt_state = shared.optimizer().update(grads, opt_state, params)
    return eqx.apply_updates(model, updates), opt_state, loss


def main() -> None:
    model = Model(jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    opt_state = shared.optimizer().init(params)

    def step() -> float:
        nonlocal model, opt_state
        model, opt_state, loss = train_step(model, opt_state)
        return float(loss)

    worker.serve(step, num_params=num_params, packages=("equinox", "jax", "optax"))


if __name__ == "__main__":
    main()
