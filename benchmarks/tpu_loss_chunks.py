"""The portable loss on v5p, forward and backward, by how many chunks it computes logits in.

    pip install "axl-tpu[aot]"
    python benchmarks/tpu_loss_chunks.py

compiles it by libtpu for one chip that is not available, at the sizes of Llama 2 7B's step on 256
chips, and writes `results/tpu_loss_chunks.json`: time by libtpu's own estimate of cycles, compared
with that of its three products at the peak, and temporaries. Nothing here has run on a chip.
"""

import argparse
import json
import math
from typing import Any

from _apart import measured_apart
from _record import record, stamped

from axcore.aot import compile_devices, find_aot_target
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import parse_program
from axcore.plugins import Hardware, wanted_compiler_options

TARGET = "tpu-v5p-8"
ROWS, TOKENS, DIM, WORDS = 4, 4096, 4096, 32_000
CHUNKS = (16, 8, 4, 3, 2)


def measure() -> dict[str, Any]:
    """Return the figures by number of chunks, in the process that compiles."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from axcore.ops import KernelPolicy, cross_entropy, use_policy
    from axcore.ops.cross_entropy import kernels

    hardware = Hardware.parse(TARGET)
    assert hardware.clock_hz is not None
    here = SingleDeviceSharding(compile_devices(find_aot_target(hardware), hardware)[0])

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=here)

    def loss(x: Any, w: Any, targets: Any, weights: Any) -> Any:
        return cross_entropy(x, w, targets, weights)[0]

    x, w = array(jnp.bfloat16, ROWS, TOKENS, DIM), array(jnp.float32, DIM, WORDS)
    targets, weights = (array(dtype, ROWS, TOKENS) for dtype in (jnp.int32, jnp.float32))
    found: dict[str, Any] = {"products_at_peak_ms": _products_ms(hardware)}
    for chunks in CHUNKS:
        kernels.CHUNK_BYTES = math.ceil(4 * ROWS * TOKENS * WORDS / chunks)
        policy = KernelPolicy(hardware=hardware, pins={"cross_entropy": "portable"})
        with use_policy(policy):
            both = jax.jit(jax.grad(loss, (0, 1))).lower(x, w, targets, weights)
        compiled = both.compile(compiler_options=dict(wanted_compiler_options(hardware)))
        ran = executions(parse_program(compiled.as_text()))
        cycles = sum((one.instruction.number("estimated_cycles") or 0) * one.times for one in ran)
        temporaries = compiled.memory_analysis().temp_size_in_bytes
        found[f"{chunks} chunks"] = {
            "cycles": int(cycles),
            "time_ms": round(1e3 * cycles / hardware.clock_hz, 2),
            "temporaries_gib": round(temporaries / 2**30, 2),
        }
    return found


def _products_ms(hardware: Hardware) -> float:
    """Return the time of the logits and of both gradients at the peak."""
    flops = 3 * 2.0 * ROWS * TOKENS * DIM * WORDS
    peak = hardware.peak_flops["bfloat16"] / hardware.devices_per_chip
    return round(1e3 * flops / peak, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only-measure", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().only_measure:
        print(json.dumps(measure()))
        return
    figures = stamped(measured_apart(TARGET, __file__, "--only-measure"), TARGET)
    print(json.dumps(figures, indent=2))
    record("tpu_loss_chunks", figures)


if __name__ == "__main__":
    main()
