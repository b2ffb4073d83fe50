"""Large products on TPUs by how much a fusion may hold on the chip, and by the format they are in.

    pip install "axl-tpu[aot]"
    python benchmarks/tpu_fusions.py                      # every target
    python benchmarks/tpu_fusions.py --target tpu-v6e-4

compiles products in bfloat16 and in int8 by libtpu for chips that are not available, with the
options that axl-tpu asks for and limits of 16 to 64 MiB of `xla_tpu_scoped_vmem_limit_kib`, and
left to itself. Shares of the format's peak are by libtpu's own estimate of cycles. It writes
`results/tpu_fusions.json`. Nothing here has run on a chip.
"""

import argparse
import json
from typing import Any

from _apart import measured_apart
from _record import record, recorded, stamped

from axcore.aot import compile_devices, find_aot_target
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import parse_program
from axcore.plugins import Hardware, wanted_compiler_options

TARGETS = ("tpu-v5e-4", "tpu-v5p-8", "tpu-v6e-4", "tpu-7x-8")
SIZES = ((8192, 4096, 11008), (8192, 8192, 8192), (24576, 4096, 4096))
LIMIT = "xla_tpu_scoped_vmem_limit_kib"
LIMITS_MIB = (None, 16, 24, 32, 48, 64)


def share_of_peak(
    hardware: Hardware, sizes: tuple[int, int, int], *, dtype: str, limit_mib: int | None
) -> float:
    """Return what share of a device's peak a product of [rows, depth] and [depth, columns] has."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    rows, depth, columns = sizes
    here = SingleDeviceSharding(compile_devices(find_aot_target(hardware), hardware)[0])
    made = jnp.int32 if dtype == "int8" else jnp.bfloat16
    product = jax.jit(lambda x, w: jnp.dot(x, w, preferred_element_type=made))
    x, w = (
        jax.ShapeDtypeStruct(shape, dtype, sharding=here)
        for shape in ((rows, depth), (depth, columns))
    )
    options = dict(wanted_compiler_options(hardware))
    del options[LIMIT]
    if limit_mib is not None:
        options[LIMIT] = limit_mib * 1024
    compiled = product.lower(x, w).compile(compiler_options=options)
    ran = executions(parse_program(compiled.as_text()))
    cycles = sum((one.instruction.number("estimated_cycles") or 0) * one.times for one in ran)
    assert hardware.clock_hz is not None
    reached = 2.0 * rows * depth * columns * hardware.clock_hz / cycles
    return reached / (hardware.peak_flops[dtype] / hardware.devices_per_chip)


def measure(target: str) -> dict[str, Any]:
    """Return the shares of one target, in the process that compiles for it."""
    hardware = Hardware.parse(target)
    dtypes = [dtype for dtype in ("bfloat16", "int8") if dtype in hardware.peak_flops]
    return {
        dtype: {
            "its own" if limit_mib is None else f"{limit_mib} MiB": [
                round(share_of_peak(hardware, sizes, dtype=dtype, limit_mib=limit_mib), 3)
                for sizes in SIZES
            ]
            for limit_mib in LIMITS_MIB
        }
        for dtype in dtypes
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--only-measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only_measure:
        print(json.dumps(measure(given.only_measure)))
        return
    shares = recorded("tpu_fusions").get("share", {})
    for target in given.target or TARGETS:
        one = measured_apart(target, __file__, "--only-measure", target)
        shares[target] = stamped(one, target)
        print(target, json.dumps(shares[target], indent=2))
        record(
            "tpu_fusions",
            {"sizes": SIZES, "share": shares},
            command="python benchmarks/tpu_fusions.py",
        )


if __name__ == "__main__":
    main()
