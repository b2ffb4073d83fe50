"""MaxText's train steps, compiled for TPUs that are not available, by an installed MaxText.

Its own `train_compile` compiles the step with its own defaults, which recompute every layer, at the
batch of `benchmarks/aot.py`; temporaries are libtpu's, cycles its estimates, added up over the call
graph with loops counted, as for axcore's step. Custom kernels have none, and are left out.

    python3.12 -m venv VENV && VENV/bin/pip install "maxtext[tpu]"
    python benchmarks/peers/compile_maxtext.py --python VENV/bin/python --size 7b --size 70b

writes `results/peer_maxtext.json` after each; sizes that are not named stay as they were.
`--with-options` gives MaxText the compiler options that axl-tpu asks for, in a row of its own. What
follows `--` is given to MaxText as well, as `sa_block_q=1024` is. Nothing here has run on a chip.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _record import record, recorded, stamped

from axcore.aot.cost.times import costs
from axcore.aot.hlo.program import parse_program
from axcore.plugins import Hardware, wanted_compiler_options

COMMAND = "python benchmarks/peers/compile_maxtext.py --python VENV/bin/python [--with-options]"
MODULE = "maxtext.trainers.pre_train.train_compile"
SIZES = {
    "7b": ("llama2-7b", "v5p-512", 4),
    "70b": ("llama2-70b", "v5p-1024", 2),
    "mixtral-8x7b": ("mixtral-8x7b", "v5p-512", 4),
}
"""Model, slice, and rows of 4096 tokens on a chip, of 1024 in all."""

WITH_OPTIONS = "{size}, axl-tpu's options"


def arguments(size: str, rest: list[str]) -> list[str]:
    """Return what MaxText is given: the model, the slice, the batch, and nothing of its tuning."""
    model, topology, rows = SIZES[size]
    return [
        f"model_name={model}",
        f"compile_topology={topology}",
        "compile_topology_num_slices=1",
        f"per_device_batch_size={rows}",
        "max_target_length=4096",
        "dataset_type=synthetic",
        "enable_checkpointing=false",
        "log_config=false",
        *rest,
    ]


def compiled(python: Path, size: str, rest: list[str]) -> dict[str, Any]:
    """Return the figures of one step, compiled in MaxText's environment."""
    given = arguments(size, rest)
    save = Path(__file__).with_name("_save_program.py")
    with tempfile.TemporaryDirectory() as folder:
        config = _output(python, "import maxtext; print(maxtext.__path__[0])") + "/configs/base.yml"
        command = [str(python), str(save), folder, MODULE, config, *given]
        subprocess.run(command, env=_environment(), check=True, cwd=folder)
        about = json.loads((Path(folder) / "about.json").read_text(encoding="utf-8"))
        program = parse_program((Path(folder) / "program.txt").read_text(encoding="utf-8"))
    hardware = Hardware.parse(f"tpu-{SIZES[size][1]}")
    cycles = sum(one.cycles for one in costs(program, hardware))
    return {
        "arguments": given,
        "versions": {"jax": about["jax"], **_versions(python)},
        "temporaries_gib": round(about["temporary_bytes"] / 2**30, 2),
        "cycles": cycles,
        "cycles_s": cycles / (hardware.clock_hz or 1.0),
    }


def _compiler_options(size: str) -> str:
    """Return the argument by which MaxText compiles with the options that axl-tpu asks for."""
    options = wanted_compiler_options(Hardware.parse(f"tpu-{SIZES[size][1]}"))
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())
    return f"compile_xla_flags={flags}"


def _environment() -> dict[str, str]:
    """Return this environment without what would bring axcore's packages, as jax's path of libtpu
    does, which it sets where it is imported.
    """
    ours = ("PYTHONPATH", "TPU_", "LIBTPU_", "JAX_", "XLA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}


def _versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m; print(m.version('maxtext'), m.version('libtpu'))"
    maxtext, libtpu = _output(python, code).split()
    return {"maxtext": maxtext, "libtpu": libtpu}


def _output(python: Path, code: str) -> str:
    done = subprocess.run(
        [str(python), "-c", code], env=_environment(), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="of MaxText's environment")
    parser.add_argument("--size", choices=SIZES, action="append", help="all by default")
    parser.add_argument("--with-options", action="store_true", help="with axl-tpu's options")
    parser.add_argument("rest", nargs="*", help="more arguments of MaxText, after --")
    given = parser.parse_args()
    figures = recorded("peer_maxtext")
    for size in given.size or SIZES:
        name = WITH_OPTIONS.format(size=size) if given.with_options else size
        options = [_compiler_options(size)] if given.with_options else []
        figures[name] = stamped(compiled(given.python, size, [*given.rest, *options]), "")
        print(name, json.dumps(figures[name], indent=2))
        print(f"written to {record('peer_maxtext', figures, command=COMMAND)}")


if __name__ == "__main__":
    main()
