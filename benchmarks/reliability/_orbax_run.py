"""A run written by hand, without axcore: jax.distributed, Orbax, and a parent that relaunches all.

    python _orbax_run.py FOLDER COUNT

The parent waits until any process ends, kills the others, and starts all of them again; they
restore the newest checkpoint. Each process trains the transformer of `small_experiment`, saves
asynchronously every ten steps, and finds compiled programs in jax's persistent cache.
"""

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from _step_log import StepLog

VOCAB, DIM, LAYERS, HEADS, HIDDEN, TOKENS, ROWS = 264, 32, 2, 2, 64, 32, 4
"""As in `small_experiment`; the rows are those of one process."""
EVERY_STEPS = 10


def supervise(folder: str, count: str) -> None:
    """Start all processes, again and again."""
    while True:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        workers = [
            subprocess.Popen([sys.executable, __file__, folder, count, str(rank), address])
            for rank in range(int(count))
        ]
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()


def work(folder: Path, count: int, rank: int, address: str) -> None:
    """Train as one process, from the newest checkpoint."""
    import jax
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from orbax.checkpoint import v1

    jax.distributed.initialize(address, count, rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_row = NamedSharding(mesh, PartitionSpec("data"))
    optimizer = optax.adamw(3e-3, weight_decay=0.1)

    def first_state() -> dict[str, Any]:
        params = first_params()
        return {"params": params, "optimizer": optimizer.init(params)}

    @partial(jax.jit, donate_argnums=0, out_shardings=everywhere)
    def train_step(state: dict[str, Any], tokens: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(state["params"], tokens)
        updates, moments = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": moments}, loss

    checkpointer = v1.training.Checkpointer(
        folder / "checkpoints",
        save_decision_policy=v1.training.save_decision_policies.FixedIntervalPolicy(EVERY_STEPS),
        preservation_policy=v1.training.preservation_policies.LatestN(2),
        cleanup_tmp_directories=True,
    )
    log = StepLog(folder, rank)
    if (latest := checkpointer.latest) is None:
        step, state = 0, jax.jit(first_state, out_shardings=everywhere)()
        parameters = sum(x.size for x in jax.tree.leaves(state["params"]))
        log.write(parameters=parameters, bytes=sum(x.nbytes for x in jax.tree.leaves(state)))
    else:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
            jax.eval_shape(first_state),
        )
        step, state = latest.step, checkpointer.load(latest.step, shapes)
    while True:
        step += 1
        rows = np.random.default_rng((step, rank)).integers(0, VOCAB, (ROWS, TOKENS))
        tokens = jax.make_array_from_process_local_data(by_row, rows.astype(np.int32))
        state, loss = train_step(state, tokens)
        loss.block_until_ready()
        log.write(step=step)
        checkpointer.save_async(step, state)


def first_params() -> dict[str, Any]:
    """Return the parameters, layers stacked."""
    import jax

    half = DIM // HEADS
    shapes = {
        "q": (DIM, HEADS, half),
        "kv": (2, DIM, half),
        "out": (HEADS, half, DIM),
        "gate_up": (2, DIM, HIDDEN),
        "down": (HIDDEN, DIM),
    }
    keys = iter(jax.random.split(jax.random.key(0), len(shapes) + 2))
    normal = jax.random.normal
    return {
        "embedding": normal(next(keys), (VOCAB, DIM)) * 0.02,
        "head": normal(next(keys), (DIM, VOCAB)) * DIM**-0.5,
        "layers": {
            name: normal(next(keys), (LAYERS, *shape)) * DIM**-0.5 for name, shape in shapes.items()
        },
    }


def loss_of(params: dict[str, Any], tokens: Any) -> Any:
    """Return the mean loss of each token after those before it."""
    import jax
    import jax.numpy as jnp
    import optax

    def normed(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        y = normed(x)
        k, v = (jnp.einsum("btd,dh->bth", y, one)[:, :, None] for one in w["kv"])
        q = jnp.einsum("btd,dnh->btnh", y, w["q"])
        o = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("btnh,nhd->btd", o, w["out"])
        gate, up = jnp.einsum("btd,kdf->kbtf", normed(x), w["gate_up"])
        return x + (jax.nn.silu(gate) * up) @ w["down"], None

    x, _ = jax.lax.scan(layer, params["embedding"][tokens[:, :-1]], params["layers"])
    logits = normed(x) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        supervise(*sys.argv[1:])
    else:
        work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
