"""`tiny_peers.py`: the same model in Flax NNX, its step as Flax's documentation writes it."""

import _tiny_jax as shared
import _tiny_worker as worker
import jax
from flax import nnx


class Block(nnx.Module):
    """Attention and a gated feed-forward, each after a norm."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs)

        dim, heads, keys = worker.DIM, worker.HEADS * worker.WIDTH, worker.KEY_HEADS * worker.WIDTH
        self.norm_1, self.norm_2 = nnx.RMSNorm(dim, rngs=rngs), nnx.RMSNorm(dim, rngs=rngs)
        self.q, self.k, self.v = linear(dim, heads), linear(dim, keys), linear(dim, keys)
        self.out = linear(heads, dim)
        self.gate, self.up = linear(dim, worker.HIDDEN), linear(dim, worker.HIDDEN)
        self.down = linear(worker.HIDDEN, dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        normed = self.norm_1(x)
        x = x + self.out(shared.attend(self.q(normed), self.k(normed), self.v(normed)))
        normed = self.norm_2(x)
        return x + self.down(nnx.silu(self.gate(normed)) * self.up(normed))


class Model(nnx.Module):
    """Layers between an embedding and an output projection of its own."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(worker.WORDS, worker.DIM, rngs=rngs)
        self.blocks = nnx.List(Block(rngs) for _ in range(worker.LAYERS))
        self.norm = nnx.RMSNorm(worker.DIM, rngs=rngs)
        self.head = nnx.Linear(worker.DIM, worker.WORDS, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda model: shared.cross_entropy(model(shared.TOKENS)))(
        model
    )
    optimizer.update(model, grads)
    return loss


def main() -> None:
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, shared.optimizer(), wrt=nnx.Param)

    def step() -> float:
        return float(train_step(model, optimizer))

    num_params = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    worker.serve(step, num_params=num_params, packages=("flax", "jax", "optax"))


if __name__ == "__main__":
    main()
