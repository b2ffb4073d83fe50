"""What axcore costs: its train step against the same model and step written by hand.

The model and the step of the experiment `tiny` are below in plain JAX and optax, as one would
write them for this model alone: tokens as rows of one matrix, tables of positions and the mask made
once. There are two of them, with layers under a scan and with layers one after the other, each with
weights of its own. All start from the same parameters and see the same batch, so that their losses
agree; they run in turn in one process.

    python benchmarks/overhead.py --steps 20
    python benchmarks/overhead.py --steps 20 --devices 8

compares with the faster of the two. It prints the ratio of step times (goal: at most 1.00), which
is the median over pairs of steps that ran one after the other, and of the FLOPs that XLA counts,
which counts the body of a scan once: read it where neither has one. Products and collectives are
counted with the rounds of loops, from the compiled programs. It writes `results/overhead.json`, or
`results/overhead_8_devices.json`. On several host devices both are fully sharded, with parameters
split alike; the hand-written step says about its hidden vectors, and of nothing else, that they are
split by rows.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _record import record

from axcore.aot.cost.operations import products
from axcore.aot.hlo.collectives import collectives
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import Program, parse_program
from axcore.experiments.tiny import tiny
from axcore.parallel import shardings_like
from axcore.plugins import Hardware

# -- By hand -------------------------------------------------------------------------------------


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped causal attention: q `[B, T, K, G, H]`, k and v `[B, T, K, H]`."""
    logits = jnp.einsum("btkgh,bskh->bkgts", q, k) / np.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(mask, logits, -1e30), axis=-1)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v)


def by_rows(x: jax.Array) -> jax.Array:
    """Says that tokens are split over devices, where there are several."""
    if jax.sharding.get_abstract_mesh().size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, jax.P("fsdp", None))


def loss_by_hand(params: Any, batch: Any, *, num_heads: int, num_kv_heads: int) -> jax.Array:
    rows, time_steps = batch["tokens"].shape
    x = by_rows(params["embedding"][batch["tokens"].reshape(-1)])
    head_dim = x.shape[-1] // num_heads
    group = num_heads // num_kv_heads
    frequencies = 10_000.0 ** -(jnp.arange(head_dim // 2) / (head_dim // 2))
    angles = batch["positions"][:, :, None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    segments, index = batch["segment_ids"], jnp.arange(time_steps)
    mask = (index[:, None] >= index) & (segments[:, :, None] == segments[:, None, :])
    mask = (mask & (segments[:, None, :] != 0))[:, None, None]

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        normed = rms_norm(x, w["norm_1"])
        q = rotate((normed @ w["q"]).reshape(rows, time_steps, num_heads, head_dim), cos, sin)
        k = rotate((normed @ w["k"]).reshape(rows, time_steps, num_kv_heads, head_dim), cos, sin)
        v = (normed @ w["v"]).reshape(rows, time_steps, num_kv_heads, head_dim)
        q = q.reshape(rows, time_steps, num_kv_heads, group, head_dim)
        x = x + attend(q, k, v, mask).reshape(x.shape) @ w["out"]
        normed = rms_norm(x, w["norm_2"])
        x = x + (jax.nn.silu(normed @ w["gate"]) * (normed @ w["up"])) @ w["down"]
        return by_rows(x), None

    if isinstance(params["layers"], list):
        for w in params["layers"]:
            x, _ = layer(x, w)
    else:
        x, _ = jax.lax.scan(layer, x, params["layers"])
    logits = rms_norm(x, params["norm"]) @ params["head"].T
    targets, weights = batch["targets"].reshape(-1), batch["loss_weights"].reshape(-1)
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - picked
    return jnp.sum(weights * losses) / jnp.sum(weights)


def optimizer_by_hand(trainer: Any, params: Any) -> optax.GradientTransformation:
    cfg = trainer.config
    schedule, adamw = cfg.learner.schedule, cfg.learner.optimizer
    rate = optax.warmup_cosine_decay_schedule(
        0.0,
        schedule.peak,
        round(schedule.warmup_steps * cfg.max_steps),
        cfg.max_steps,
        schedule.peak * schedule.final_fraction,
    )
    decays = jax.tree.map_with_path(lambda path, _: "norm" not in path[-1].key, params)
    return optax.chain(
        optax.clip_by_global_norm(cfg.learner.clip_norm),
        optax.adamw(
            lambda step: rate(step + 1),
            b1=adamw.b1,
            b2=adamw.b2,
            eps=adamw.epsilon,
            weight_decay=adamw.weight_decay,
            mask=decays,
        ),
    )


def step_by_hand(trainer: Any, params: Any) -> tuple[Any, Any]:
    """Return the jitted step `(params, opt_state, batch)` and the first optimizer state."""
    optimizer = optimizer_by_hand(trainer, params)
    attention = trainer.config.model.decoder.stack.layer.attention
    heads = {
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads or attention.num_heads,
    }

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: loss_by_hand(p, batch, **heads))(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state = optimizer.init(params)
    mesh, placed = trainer.mesh, jax.tree.map(lambda leaf: leaf.sharding, params)
    like = shardings_like(opt_state, params, placed, mesh)
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(placed, like, None))
    return jitted, jax.device_put(opt_state, like)


def params_of(state: Any) -> Any:
    """Return copies of axcore's parameters under the names used here."""
    layer = state["decoder"]["stack"]["layer"]
    attention, feed_forward = layer["attention"], layer["feed_forward"]
    params = {
        "embedding": state["decoder"]["embedding"]["weight"],
        "norm": state["decoder"]["norm"]["weight"],
        "head": state["head"]["weight"],
        "layers": {
            "norm_1": layer["attention_residual"]["norm"]["weight"],
            "norm_2": layer["feed_forward_residual"]["norm"]["weight"],
            **{name: attention[name]["weight"] for name in ("q", "k", "v", "out")},
            **{name: feed_forward[name]["weight"] for name in ("gate", "up", "down")},
        },
    }
    return jax.tree.map(jnp.copy, params)


def one_by_one(params: Any) -> Any:
    """Return parameters with those of each layer in arrays of their own."""
    stacked = params["layers"]
    layers = [jax.tree.map(lambda leaf: leaf[i], stacked) for i in range(len(stacked["q"]))]  # noqa: B023
    return jax.tree.map(jnp.copy, {**params, "layers": layers})


# -- The comparison ------------------------------------------------------------------------------


class Timed:
    """A compiled step with its state, and the times of its calls."""

    def __init__(self, program: Any, state: Any, call: Any) -> None:
        self.program = program
        self.call = call
        self.state = state
        self.seconds: list[float] = []
        self.loss = float("nan")

    def step(self, batch: Any) -> None:
        started = time.perf_counter()
        self.state, loss = jax.block_until_ready(self.call(self.state, batch))
        self.seconds.append(time.perf_counter() - started)
        self.loss = float(loss)


def compare(steps: int) -> dict[str, Any]:
    """Return the figures of both, and their ratios."""
    trainer = tiny().build()
    with jax.set_mesh(trainer.mesh):
        batch = trainer.batch_sharding.device_put(next(iter(trainer.data.train())))
        ours = trainer.compiler.jitted_init()
        scanned = params_of(ours.model)
        by_hand = {
            "scanned": timed_by_hand(trainer, scanned, batch),
            "one_by_one": timed_by_hand(trainer, one_by_one(scanned), batch),
        }
        program = trainer.compiler.jitted_step.lower(ours, batch).compile()
        by_axcore = Timed(program, ours, lambda state, batch: _loss_last(program(state, batch)))
        for i in range(steps + 2):
            for timed in _rotated([by_axcore, *by_hand.values()], i):
                timed.step(batch)
    figures = {name: _figures(by_axcore, timed) for name, timed in by_hand.items()}
    faster = min(by_hand, key=lambda name: figures[name]["step_time_s"]["by_hand"])
    return {"faster_by_hand": faster, **figures}


def timed_by_hand(trainer: Any, params: Any, batch: Any) -> Timed:
    step, opt_state = step_by_hand(trainer, params)
    program = step.lower(params, opt_state, batch).compile()
    return Timed(
        program,
        (params, opt_state),
        lambda state, batch: _pair_first(program(*state, batch)),
    )


def _rotated(rivals: list[Timed], by: int) -> list[Timed]:
    turn = by % len(rivals)
    return rivals[turn:] + rivals[:turn]


def _loss_last(result: Any) -> Any:
    state, metrics = result
    (loss,) = metrics.losses.values()
    return state, loss.sum / loss.weight


def _pair_first(result: Any) -> Any:
    params, opt_state, loss = result
    return (params, opt_state), loss


def _figures(ours: Timed, hand: Timed) -> dict[str, Any]:
    timed, compiled = (ours, hand), (ours.program, hand.program)
    costs = [program.cost_analysis() for program in compiled]
    memory = [program.memory_analysis() for program in compiled]
    read = [parse_program(program.as_text()) for program in compiled]
    pairs = {
        "step_time_s": [statistics.median(one.seconds[2:]) for one in timed],
        "fastest_step_s": [min(one.seconds[2:]) for one in timed],
        "flops": [cost["flops"] for cost in costs],
        "flops_of_products": [flops_of_products(program) for program in read],
        "collectives": [num_collectives(program) for program in read],
        "bytes_accessed": [cost["bytes accessed"] for cost in costs],
        "temporary_bytes": [float(sizes.temp_size_in_bytes) for sizes in memory],
        "loss_after_the_last_step": [ours.loss, hand.loss],
    }
    figures = {name: _row(*pair) for name, pair in pairs.items()}
    side_by_side = zip(ours.seconds[2:], hand.seconds[2:], strict=True)
    ratio = statistics.median(one / other for one, other in side_by_side)
    figures["step_time_s"]["ratio"] = round(ratio, 4)
    return figures


def _row(ours: float, hand: float) -> dict[str, float]:
    ratio = 1.0 if ours == hand else round(ours / hand, 4)
    return {"axcore": ours, "by_hand": hand, "ratio": ratio}


def flops_of_products(program: Program) -> float:
    return sum(
        product.flops * one.times
        for one in executions(program)
        for product in products(program, one.instruction, one.computation)
    )


def num_collectives(program: Program) -> float:
    hardware = Hardware.parse(f"cpu-{jax.device_count()}")
    return float(sum(one.times for one in collectives(program, hardware)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="timed steps of each")
    parser.add_argument("--devices", type=int, default=1, help="host devices")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    figures = compare(arguments.steps)
    print(f"the faster step by hand runs its layers {figures['faster_by_hand']}")
    for name, row in figures[figures["faster_by_hand"]].items():
        print(f"{name:26} {row['axcore']:16.6g} {row['by_hand']:16.6g}   ratio {row['ratio']:.4f}")
    name = "overhead" if arguments.devices == 1 else f"overhead_{arguments.devices}_devices"
    print(f"written to {record(name, figures)}")


if __name__ == "__main__":
    main()
