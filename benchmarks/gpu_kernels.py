"""Our kernels for NVIDIA GPUs against the libraries' on the GPU at hand.

    python benchmarks/gpu_kernels.py                      # everything
    python benchmarks/gpu_kernels.py --only attention     # one subject
    python benchmarks/gpu_kernels.py --quick              # the smallest case of each
    python benchmarks/gpu_kernels.py --dry-run            # trace all of them for an H100, anywhere

Goals: attention within a tenth of cuDNN's time at 4k to 16k tokens, and ahead with documents.
Where JAX sees no GPU that the kernels are written for it says so, and writes nothing.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from _record import record
from axl_gpu.hardware import WGMMA
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec, KernelPolicy, use_policy
from axcore.ops.attention.kernels import attention_call, run_attention
from axcore.ops.dispatch.registry import op_kernels
from axcore.plugins import Hardware

REPEATS, CALLS = 7, 10
"""Timings of each rival, in turn, and calls in each, which hide what it takes to start one."""


@attrs.frozen(kw_only=True)
class Contest:
    """Rivals for the same work.

    Args:
        name: Of the case.
        rivals: By name, functions of the arguments; our kernel is `ours`.
        arguments: What they are called with.
        flops: Of one call, those of hidden pairs not counted.
    """

    name: str
    rivals: Mapping[str, Callable[..., Any]]
    arguments: tuple[Any, ...]
    flops: float


# -- Attention ---------------------------------------------------------------------------------

HEADS, KEY_HEADS, WIDTH = 16, 8, 128
TOKENS = 16384
"""Of all rows, so that every case has as many."""

OURS = "gpu_flash_attention"
DOCUMENT = 1024
"""Tokens of a packed document."""


def attention(quick: bool) -> Iterator[Contest]:
    """Causal attention, whole rows and packed documents, forward alone and with gradients."""
    of = lambda make: make() if jax.default_backend() == "gpu" else jax.eval_shape(make)  # noqa: E731
    for length in (4096,) if quick else (4096, 8192, 16384):
        for is_packed in (False, True):
            inputs = of(partial(_inputs, length, is_packed=is_packed))
            spec = AttentionSpec(scale=WIDTH**-0.5, right=0)
            seen = DOCUMENT if is_packed else length
            products = 2 * 2.0 * TOKENS * HEADS * WIDTH * seen / 2
            rivals = {"ours": OURS, "cudnn": "cudnn_attention"}
            if is_packed:
                rivals["cudnn_packed"] = "cudnn_packed_attention"
            takes = {as_: name for as_, name in rivals.items() if _takes(name, inputs, spec)}
            kind = "packed" if is_packed else "causal"
            for direction, run, share in (
                ("forward", _forward, 1.0),
                ("forward_backward", _gradients, 3.5),
            ):
                yield Contest(
                    name=f"{kind}_{length}_{direction}",
                    rivals={as_: partial(run, name, spec) for as_, name in takes.items()},
                    arguments=(inputs,),
                    flops=share * products,
                )


def _inputs(length: int, *, is_packed: bool) -> AttentionInputs:
    rows = TOKENS // length
    keys = jax.random.split(jax.random.key(0), 3)
    heads = (HEADS, KEY_HEADS, KEY_HEADS)
    q, k, v = (
        jax.random.normal(key, (rows, length, count, WIDTH), jnp.bfloat16)
        for key, count in zip(keys, heads, strict=True)
    )
    if not is_packed:
        return AttentionInputs(q, k, v)
    document = 1 + jnp.arange(length, dtype=jnp.int32) // DOCUMENT
    segments = jnp.broadcast_to(document[None, :], (rows, length))
    return AttentionInputs(q, k, v, segments, segments)


def _takes(name: str, inputs: AttentionInputs, spec: AttentionSpec) -> bool:
    (kernel,) = [one for one in op_kernels("attention") if one.name == name]
    call = attention_call(inputs, spec, with_lse=False)
    return kernel.unsupported_reason is None or kernel.unsupported_reason.resolve()(call) is None


def _forward(name: str, spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    hardware = Hardware.detect() if jax.default_backend() == "gpu" else Hardware.parse("gpu-h100-1")
    policy = KernelPolicy(hardware=hardware, pins={"attention": name})
    with use_policy(policy):
        return run_attention(inputs, spec, with_lse=False)[0]


def _gradients(name: str, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Array, ...]:
    def loss(qkv: tuple[Array, ...]) -> Array:
        whole = inputs._replace(q_BTNH=qkv[0], k_BSKH=qkv[1], v_BSKV=qkv[2])
        return jnp.sum(_forward(name, spec, whole).astype(jnp.float32))

    return jax.grad(loss)(tuple(inputs[:3]))


SUBJECTS: dict[str, Callable[[bool], Iterator[Contest]]] = {"attention": attention}
"""By name, what yields the contests of one op."""


# -- Timing ------------------------------------------------------------------------------------


def measure(contest: Contest) -> dict[str, Any]:
    """Returns time and TFLOP/s of each rival, run in turn, and ours over the best of the others."""
    programs = {
        name: jax.jit(rival).lower(*contest.arguments).compile()
        for name, rival in contest.rivals.items()
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(REPEATS + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            outputs = [program(*contest.arguments) for _ in range(CALLS)]
            jax.block_until_ready(outputs)
            if repeat:
                times[name].append((time.perf_counter() - start) / CALLS)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    others = [time_s for name, time_s in seconds.items() if name != "ours"]
    return {
        "median_ms": {name: round(1e3 * time_s, 4) for name, time_s in seconds.items()},
        "min_ms": {name: round(1e3 * min(found), 4) for name, found in times.items()},
        "tflops_per_s": {
            name: round(contest.flops / time_s / 1e12, 1) for name, time_s in seconds.items()
        },
        "temporaries_mib": {
            name: round(program.memory_analysis().temp_size_in_bytes / 2**20, 1)
            for name, program in programs.items()
        },
        "ours_over_best_rival": round(seconds["ours"] / min(others), 3) if others else None,
    }


def trace(contest: Contest) -> None:
    """Traces every rival, which needs no GPU."""
    for rival in contest.rivals.values():
        jax.eval_shape(rival, *contest.arguments)


def missing_sdk_reason() -> str | None:
    """Returns None where there is a GPU to measure, else why there is none."""
    if jax.default_backend() != "gpu":
        return f"JAX sees no GPU here, only {jax.devices()[0].device_kind!r}"
    hardware = Hardware.detect()
    if WGMMA not in hardware.features:
        return f"{hardware.name} lacks {WGMMA}, which the kernels are written in"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, trace all")
    options = parser.parse_args()
    contests = [
        (subject, contest)
        for subject in options.only or SUBJECTS
        for contest in SUBJECTS[subject](options.quick or options.dry_run)
    ]
    if options.dry_run:
        for _, contest in contests:
            trace(contest)
        print(f"{len(contests)} contests can start")
        return 0
    reason = missing_sdk_reason()
    if reason is not None:
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 1
    figures: dict[str, Any] = {
        "gpu": jax.devices()[0].device_kind,
        "date": datetime.now(UTC).date().isoformat(),
    }
    for subject, contest in contests:
        figures.setdefault(subject, {})[contest.name] = found = measure(contest)
        print(subject, contest.name, found["tflops_per_s"], flush=True)
    print(record("gpu_kernels", figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
