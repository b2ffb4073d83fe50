"""Compiles a train step for eight H100 without having one, and prints what it multiplies as JSON.

    python fp8_child.py FOLDER NAME

It runs in a process of its own, because the compiler's packages add a platform to JAX. NAME is one
of `MODIFIERS`, or `wide`.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import jax
from jax.experimental import topologies

from axcore.config import evolve
from axcore.layers import Fp8Current, Fp8Delayed, Fp8Training, Int8Training
from axcore.module import DTypes
from axcore.testing import small_experiment
from axcore.trainer import Trainer

MODIFIERS = {
    "current": Fp8Training(dot=Fp8Current.Config()),
    "delayed": Fp8Training(dot=Fp8Delayed.Config()),
    "int8": Int8Training(),
}

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 28 } runtime_version { major: 13 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""XLA's GpuTargetConfigProto, as facts of the chip."""


def experiment(folder: Path) -> Trainer.Config:
    """Returns a transformer of two scanned layers, in bfloat16, split over eight devices."""
    cfg = small_experiment(folder)
    model = evolve(cfg.model, dtypes=DTypes(compute="bfloat16"))
    return evolve(cfg, model=model, mesh={"fsdp": 8}, kernels={"attention": "portable"})


def products(program: str) -> dict[str, int]:
    """Returns how many matrix products of each operand format stand in a compiled program."""
    found = re.findall(r'= \(?(\w+)\[.*custom_call_target="(__cublas[^"]*)"', program)
    kinds = Counter("float8" if call.endswith("$f8") else dtype for dtype, call in found)
    return {"float8": kinds.pop("float8", 0), "int8": kinds.pop("s32", 0), "wide": kinds.total()}


def main(folder: Path, name: str) -> None:
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x8")
    cfg = experiment(folder)
    trainer = Trainer(cfg, devices=topology.devices)
    if name != "wide":
        cfg = MODIFIERS[name].apply(cfg, trainer.hardware)
        trainer = Trainer(cfg, devices=topology.devices)
    program = trainer.step_program().as_text()
    plan = {
        f"{one.call.op} {dict(one.call.features).get('product', '')}".strip(): one.kernel.name
        for one in trainer.kernel_plan().choices
    }
    found = products(program)
    print(json.dumps({"target": trainer.hardware.name, "plan": plan, "products": found}))


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    main(Path(sys.argv[1]), sys.argv[2])
