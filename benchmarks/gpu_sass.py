"""What NVIDIA's assembler makes of our kernels for Hoppers: registers, instructions, overlap.

    pip install "axl-gpu[aot]"
    pip download --no-deps triton && unzip -j triton-*.whl '*/bin/nvdisasm' && chmod +x nvdisasm
    PATH=$PATH:. python benchmarks/gpu_sass.py

compiles the smallest contest of each subject of `gpu_kernels.py` for one H100 that is not
available, at the block sizes that axl-gpu gives it, and attention in two more forms that tuning
tries, and writes `results/gpu_sass.json`. The disassembler is part of CUDA; of Python's packages
`triton` carries it. `--nvdisasm PATH` names another one.

Of each kernel: registers of a thread at the start (warp groups that multiply ask for more), spills,
shared memory, instructions by kind, and a round of its main loop (`_sass.py`). `product_cycles` of
a round is what its products take at the chip's peak, `issue_cycles` what a warp takes at least to
issue it, where nothing is waited for; both are of one warp group. `under_products` lists for
products that begin together how many instructions, and exponentials of them, run before their sum
is waited for: none where a warp group does nothing else meanwhile. Nothing here has run on a chip.
"""

import argparse
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from _apart import measured_apart
from _record import record, stamped
from _sass import Listing, round_figures

TARGET = "gpu-h100-1"
SUBJECTS = {
    "attention": "attention_causal",
    "attention_one_backward_kernel": "attention_causal",
    "attention_persistent": "attention_causal",
    "attention_documents": "attention_packed",
    "decode": "decode",
    "grouped": "grouped",
    "loss": "loss",
    "float8": "float8",
    "norm": "norm",
}
"""Of `gpu_kernels.py`, by what results call their programs; the last of a subject's contests."""

# -- In a process for the target -----------------------------------------------------------------


def measure(nvdisasm: Path) -> dict[str, Any]:
    """Return the figures of every kernel, by program."""
    with tempfile.TemporaryDirectory() as folder:
        _use_tools(Path(folder) / "cuda", nvdisasm)
        return {name: _kernels(name, Path(folder) / name) for name in SUBJECTS}


def _use_tools(folder: Path, nvdisasm: Path) -> None:
    """Let Mosaic GPU find the disassembler next to the assembler, where it looks for both."""
    from jax.experimental.mosaic.gpu import core  # noqa: F401 - which says where CUDA is

    cuda = Path(os.environ["MOSAIC_GPU_CUDA_ROOT"])
    (folder / "bin").mkdir(parents=True)
    (folder / "nvvm").symlink_to(cuda / "nvvm")
    for tool in (cuda / "bin").iterdir():
        (folder / "bin" / tool.name).symlink_to(tool)
    (folder / "bin" / "nvdisasm").unlink(missing_ok=True)
    (folder / "bin" / "nvdisasm").symlink_to(nvdisasm)
    os.environ["MOSAIC_GPU_CUDA_ROOT"] = str(folder)


def _kernels(name: str, folder: Path) -> dict[str, Any]:
    """Return the kernels of a program that no program before had."""
    import jax
    from axl_gpu.compiler import devices
    from gpu_kernels import SUBJECTS as CONTESTS

    from axcore.plugins import Hardware

    folder.mkdir()
    os.environ["MOSAIC_GPU_DUMP_TO"] = str(folder)
    *_, contest = CONTESTS[SUBJECTS[name]](True)
    one = jax.sharding.SingleDeviceSharding(devices(Hardware.parse(TARGET))[0])
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), contest.arguments
    )
    with _block_sizes(name):
        jax.jit(contest.rivals["ours"]).lower(*arguments).compile()
    return dict(_dumped(folder))


def _block_sizes(name: str) -> AbstractContextManager[Any]:
    """Return where a program has block sizes that only tuning tries."""
    from axl_gpu.kernels.attention.arrays import ForwardBlockSizes
    from axl_gpu.kernels.attention.block_sizes import (
        BACKWARD_BLOCK_SIZES,
        FORWARD_BLOCK_SIZES,
        PROCESSORS,
        BackwardBlockSizes,
    )

    if name == "attention_one_backward_kernel":
        return BACKWARD_BLOCK_SIZES.forced(BackwardBlockSizes(num_kernels=1))
    if name == "attention_persistent":
        blocks = ForwardBlockSizes(64, 128, num_groups=2, num_stages=2, num_programs=PROCESSORS)
        return FORWARD_BLOCK_SIZES.forced(blocks)
    return nullcontext()


def _dumped(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the figures of each kernel that Mosaic GPU wrote to a folder."""
    for path in sorted(folder.glob("*.sass_ctrl")):
        listing = Listing.of(path.read_text(encoding="utf-8"))
        report = path.with_suffix(".ptxas").read_text(encoding="utf-8")
        with path.with_suffix(".mlir-passes.log").open(encoding="utf-8") as passes:
            (shared,) = next(
                found
                for line in passes
                if (found := re.findall(r"dynamic_shared_memory_size %c(\d+)", line))
            )
        main_loop = listing.main_loop()
        yield (
            path.stem.rpartition("_")[0],
            {
                "registers": _number(r"Used (\d+) registers", report),
                "spilled_bytes": _number(r"(\d+) bytes spill stores", report),
                "shared_bytes": int(shared),
                "has_serialized_products": "serialized" in report,
                **listing.counts(),
                "round": round_figures(main_loop) if main_loop else None,
            },
        )


def _number(pattern: str, report: str) -> int:
    return max(int(one) for one in re.findall(pattern, report))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvdisasm", default="nvdisasm", help="NVIDIA's disassembler")
    parser.add_argument("--only-measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    nvdisasm = shutil.which(given.nvdisasm)
    if nvdisasm is None:
        parser.error(f"there is no {given.nvdisasm}: --nvdisasm PATH says where one is")
    if given.only_measure:
        print(json.dumps(measure(Path(nvdisasm).resolve())))
        return
    programs = measured_apart(TARGET, __file__, "--nvdisasm", nvdisasm, "--only-measure")
    print(record("gpu_sass", {"target": TARGET, **stamped({"programs": programs}, TARGET)}))


if __name__ == "__main__":
    main()
