"""Llama 2's train steps, compiled for TPUs that are not available: axcore's against one by hand.

All are compiled by libtpu for the same slice, at a batch of 1024 rows of 4096 tokens, everything
sharded over all chips. axcore's is shown as the experiment's rule has it, and with every layer
recomputed in full in the backward pass, as the others are. The step by hand
is below in plain JAX and optax, as one would write it: layers under a scan, splash attention,
bfloat16 copies of float32 weights, all logits at once. It is compiled with the compiler's defaults,
and with the options that axl-tpu asks for. MaxText's step is shown as well, where
`peers/compile_maxtext.py` compiled it, by the versions that it names.

    pip install "axl-tpu[aot]"
    python benchmarks/aot.py --size 7b --size 70b

prints temporaries, cycles and predicted times, and writes `results/aot.json`. Cycles are the
compiler's own estimates, added up over the call graph with loops counted; custom kernels have none,
and are left out for both. Nothing here has run on a chip.
"""

import argparse
import json
import time
from functools import partial
from typing import Any

import attrs
from _apart import measured_apart
from _record import record, recorded, stamped

from axcore.aot import compile_devices, compile_resolved, find_aot_target
from axcore.plugins import Hardware, wanted_compiler_options

ROWS, TOKENS, VOCABULARY = 1024, 4096, 32000
RECOMPUTING_ALL = "model.decoder.stack.layer.remat.save=()"
HEAD_DIM = 128


@attrs.frozen(kw_only=True)
class Size:
    """A model of Llama 2, the slice that it is compiled for, and what others reached there.

    Source: Touvron et al. 2023, arXiv:2307.09288; published steps from AXLearn, arXiv:2507.05411.
    """

    experiment: str
    target: str
    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_dim: int
    published_step_s: float


SIZES = {
    "7b": Size(
        experiment="llama2-7b",
        target="tpu-v5p-512",
        dim=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        hidden_dim=11008,
        published_step_s=2.5,
    ),
    "70b": Size(
        experiment="llama2-70b",
        target="tpu-v5p-1024",
        dim=8192,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        hidden_dim=28672,
        published_step_s=11.6,
    ),
}

# -- By hand -------------------------------------------------------------------------------------


def shapes_of(size: Size) -> dict[str, Any]:
    """Return the shapes of the parameters, those of all layers stacked."""
    n, d, h = size.num_layers, size.dim, size.hidden_dim
    q, kv = size.num_heads * HEAD_DIM, size.num_kv_heads * HEAD_DIM
    return {
        "embedding": (VOCABULARY, d),
        "norm": (d,),
        "head": (d, VOCABULARY),
        "layers": {
            "norm_1": (n, d),
            "norm_2": (n, d),
            "q": (n, d, q),
            "k": (n, d, kv),
            "v": (n, d, kv),
            "out": (n, q, d),
            "gate": (n, d, h),
            "up": (n, d, h),
            "down": (n, h, d),
        },
    }


def spec_of(name: str, shape: tuple[int, ...]) -> Any:
    """Return how a parameter is split: along the model's width, norms not at all."""
    from jax.sharding import PartitionSpec

    if "norm" in name:
        return PartitionSpec()
    along = {"embedding": 1, "head": 0, "out": 2, "down": 2}.get(name, 1)
    return PartitionSpec(*("fsdp" if axis == along else None for axis in range(len(shape))))


def rms_norm(x: Any, weight: Any) -> Any:
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * weight).astype(x.dtype)


def rotate(x: Any, positions: Any) -> Any:
    import jax.numpy as jnp

    frequencies = 10_000.0 ** -(jnp.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = positions[:, :, None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def attend(q: Any, k: Any, v: Any, segments: Any, mesh: Any) -> Any:
    """Splash attention on each device's own rows: `[B, T, N, H]`."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu import splash_attention as splash
    from jax.sharding import PartitionSpec

    mask = splash.MultiHeadMask([splash.CausalMask((TOKENS, TOKENS))] * q.shape[2])
    tile = splash.BlockSizes(
        block_q=512,
        block_kv=512,
        block_kv_compute=512,
        block_q_dkv=512,
        block_kv_dkv=512,
        block_kv_dkv_compute=512,
        block_q_dq=512,
        block_kv_dq=512,
    )
    kernel = splash.make_splash_mha(mask, block_sizes=tile, head_shards=1, q_seq_shards=1)

    def on_a_device(q: Any, k: Any, v: Any, segments: Any) -> Any:
        heads_first = [jnp.swapaxes(x, 1, 2) for x in (q / HEAD_DIM**0.5, k, v)]
        ids = splash.SegmentIds(q=segments, kv=segments)
        return jnp.swapaxes(jax.vmap(kernel)(*heads_first, ids), 1, 2)

    rows = PartitionSpec("fsdp")
    split = partial(jax.shard_map, mesh=mesh, in_specs=(rows,) * 4, out_specs=rows)
    return split(on_a_device, check_vma=False)(q, k, v, segments)


def loss_by_hand(params: Any, batch: Any, *, size: Size, mesh: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    hold = lambda x: jax.lax.with_sharding_constraint(x, rows)  # noqa: E731
    whole = jax.lax.with_sharding_constraint(
        params["embedding"], NamedSharding(mesh, PartitionSpec())
    )
    x = hold(whole[batch["tokens"]])

    @partial(jax.checkpoint, prevent_cse=False)
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        heads = lambda y: y.reshape(*y.shape[:2], -1, HEAD_DIM)  # noqa: E731
        normed = rms_norm(x, w["norm_1"])
        q = rotate(heads(normed @ w["q"]), batch["positions"])
        k = rotate(heads(normed @ w["k"]), batch["positions"])
        mixed = attend(q, k, heads(normed @ w["v"]), batch["segment_ids"], mesh)
        x = hold(x + mixed.reshape(*x.shape[:2], -1) @ w["out"])
        normed = rms_norm(x, w["norm_2"])
        hidden = jax.nn.silu(normed @ w["gate"]) * (normed @ w["up"])
        return hold(x + hidden @ w["down"]), None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    logits = (rms_norm(x, params["norm"]) @ params["head"]).astype(jnp.float32)
    logits = hold(logits)
    picked = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - picked
    return jnp.sum(batch["loss_weights"] * losses) / jnp.sum(batch["loss_weights"])


def compile_by_hand(size: Size, *, with_options: bool) -> dict[str, Any]:
    """Return figures of the step by hand, compiled in this process."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from axcore.aot.cost.times import costs
    from axcore.aot.hlo.program import parse_program

    hardware = Hardware.parse(size.target)
    devices = compile_devices(find_aot_target(hardware), hardware)
    mesh = jax.make_mesh((len(devices),), ("fsdp",), (AxisType.Auto,), devices=devices)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    )

    def abstract(path: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
        sharding = NamedSharding(mesh, spec_of(path[-1].key, shape))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    is_shape = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
    params = jax.tree.map_with_path(abstract, shapes_of(size), is_leaf=is_shape)
    by_shape = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(params)}
    replicated = NamedSharding(mesh, PartitionSpec())
    opt_state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=by_shape.get(leaf.shape, replicated)
        ),
        jax.eval_shape(optimizer.init, params),
    )
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    batch = {
        name: jax.ShapeDtypeStruct((ROWS, TOKENS), dtype, sharding=rows)
        for name, dtype in (
            ("tokens", jnp.int32),
            ("targets", jnp.int32),
            ("positions", jnp.int32),
            ("segment_ids", jnp.int32),
            ("loss_weights", jnp.float32),
        )
    }

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        loss = partial(loss_by_hand, size=size, mesh=mesh)
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    results = (
        jax.tree.map(lambda leaf: leaf.sharding, params),
        jax.tree.map(lambda leaf: leaf.sharding, opt_state),
        replicated,
    )
    started = time.perf_counter()
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=results)
    lowered = jitted.lower(params, opt_state, batch)
    lower_s = time.perf_counter() - started
    options = dict(wanted_compiler_options(hardware)) if with_options else None
    compiled = lowered.compile(compiler_options=options)
    program = parse_program(compiled.as_text())
    return {
        "lower_s": round(lower_s, 2),
        "compile_s": round(time.perf_counter() - started - lower_s, 1),
        "temporaries_gib": round(compiled.memory_analysis().temp_size_in_bytes / 2**30, 2),
        "cycles": sum(one.cycles for one in costs(program, hardware)),
    }


# -- The comparison ------------------------------------------------------------------------------


def by_hand(name: str, *, with_options: bool) -> dict[str, Any]:
    """Return the same, compiled in a process of its own."""
    options = ("--with-options",) * with_options
    return measured_apart(SIZES[name].target, __file__, "--by-hand", name, *options)


def by_axcore(name: str, *overrides: str) -> dict[str, Any]:
    """Return figures of axcore's step, from the report of `axcore aot`."""
    from axcore.experiments.named import load_resolved

    size = SIZES[name]
    hardware = Hardware.parse(size.target)
    resolved = load_resolved(
        size.experiment, ("kernels.choice=fastest", *overrides), hardware=hardware
    )
    report = compile_resolved(resolved, size.experiment)
    assert report.memory is not None, report.refusal
    assert report.time is not None
    return {
        "lower_s": round(report.lower_s, 2),
        "compile_s": round(report.compile_s, 1),
        "temporaries_gib": round(report.memory.temporaries_bytes / 2**30, 2),
        "cycles": report.time.cycles,
        "compute_s": report.time.compute_s,
        "kernels_s": report.time.kernels_s,
        "collectives_s": report.time.collectives_s,
        "predicted_step_s": report.time.step_s,
        "predicted_mfu": report.time.mfu,
        "formula": report.time.formula,
    }


def compare(name: str) -> dict[str, Any]:
    """Return the figures of both, and of others for the same model and slice."""
    size = SIZES[name]
    ours = by_axcore(name)
    return {
        "target": size.target,
        "batch": {"rows": ROWS, "tokens": TOKENS},
        "axcore": ours,
        "axcore_recomputing_all": by_axcore(name, RECOMPUTING_ALL),
        "by_hand": by_hand(name, with_options=False),
        "by_hand_with_the_same_options": by_hand(name, with_options=True),
        **peers(name),
        "published_step_s": size.published_step_s,
        "predicted_over_published": round(ours["predicted_step_s"] / size.published_step_s, 3),
    }


def peers(name: str) -> dict[str, Any]:
    """Return what `peers/compile_maxtext.py` recorded of a size; nothing where it did not run."""
    found = recorded("peer_maxtext")
    return {"maxtext": found[name]} if name in found else {}


def show(name: str, figures: dict[str, Any]) -> None:
    print(f"{SIZES[name].experiment} on {figures['target']}, {ROWS} rows of {TOKENS} tokens")
    for who in (
        "axcore",
        "axcore_recomputing_all",
        "by_hand",
        "by_hand_with_the_same_options",
        "maxtext",
    ):
        if who not in figures:
            continue
        one = figures[who]
        print(
            f"  {who:31} {one['temporaries_gib']:6.2f} GiB of temporaries "
            f"{one['cycles']:.4g} cycles"
            + (f", compiled in {one['compile_s']} s" if "compile_s" in one else "")
        )
    ours = figures["axcore"]
    print(
        f"  predicted step {ours['predicted_step_s']:.3f} s = {ours['compute_s']:.3f} s of cycles "
        f"+ {ours['kernels_s']:.3f} s of kernels + {ours['collectives_s']:.3f} s of collectives "
        f"alone; MFU {100 * ours['predicted_mfu']:.1f} % by {ours['formula']}"
    )
    print(
        f"  published {figures['published_step_s']} s: predicted is "
        f"{100 * (figures['predicted_over_published'] - 1):+.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append", help="7b and 70b by default")
    parser.add_argument("--by-hand", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--with-options", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.by_hand:
        figures = compile_by_hand(SIZES[given.by_hand], with_options=given.with_options)
        print(json.dumps(figures))
        return
    results = recorded("aot")
    for name in given.size or SIZES:
        results[name] = stamped(compare(name), SIZES[name].target)
        show(name, results[name])
        print(f"written to {record('aot', results)}")


if __name__ == "__main__":
    main()
