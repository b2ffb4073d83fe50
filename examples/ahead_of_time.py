"""Which machine to rent: one model compiled for several, on whatever this runs on.

    python examples/ahead_of_time.py tpu-v5e-8 gpu-h100-8

asks the machines' own compilers, where `pip install "axl-tpu[aot]" "axl-gpu[aot]"` brought them;
without a name it asks for eight devices of a host. The cheapest machine on which the model fits,
and runs fast enough, is the one with the fewest chips in the table.
"""

import sys
from collections.abc import Sequence

from axcore.aot import compile_for
from axcore.config import evolve
from axcore.experiments.tiny import tiny
from axcore.module import DTypes


def main(targets: Sequence[str]) -> None:
    """Prints what the step of a small model takes on each target."""
    experiment = tiny()
    experiment = evolve(
        experiment, model=evolve(experiment.model, dtypes=DTypes(compute="bfloat16"))
    )
    for target in targets:
        report = compile_for(experiment, target, experiment="tiny")
        assert report.memory is not None
        assert report.time is not None
        mib = report.memory.peak_bytes / 2**20
        step_s = report.time.step_s
        step = "unknown" if step_s is None else f"{1e3 * step_s:.2f} ms"
        print(f"{target}: fits {report.fits}, {mib:.1f} MiB a device, step {step}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["cpu-8"])
