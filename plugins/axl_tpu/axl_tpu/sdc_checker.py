"""XLA's own checker for silent data corruption on TPUs, off unless a variable asks for it.

It repeats each program on its chip and compares what comes out, so that N repeats make a step take
N + 1 times as long. Its options have no reference page; names and values are those of axlearn and
MaxText, and libtpu 0.0.42 compiles with them. Nothing of this has run on a chip.

Source: apple/axlearn, axlearn/common/compiler_options.py, `infer_xsc_compiler_options`;
    AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py, `SDC_CHECKER`.
"""

import os
from collections.abc import Mapping

from axcore.errors import ConfigError
from axcore.plugins import Hardware

REPEATS = "AXL_TPU_SDC_REPEATS"
"""How often each program is repeated; unset for never."""

_ONE_CORE = ("v5e", "v6e")
"""Generations with one core a chip, which repeats the instructions itself."""


def repeated_programs(hardware: Hardware) -> Mapping[str, bool | int]:
    """Return the options by which programs are repeated; none unless the variable is set.

    Raises:
        ConfigError: The variable is not a number above 0.
    """
    wanted = os.environ.get(REPEATS, "")
    if not wanted:
        return {}
    if not (wanted.isdecimal() and int(wanted)):
        raise ConfigError(
            f"{REPEATS} is {wanted!r}, not a number of repeats",
            where=f"environment variable {REPEATS}",
            hint=f"{REPEATS}=1",
        )
    return {
        "xla_tpu_enable_sdc_checker": True,
        "xla_tpu_sdc_check_repeat_count": int(wanted),
        "xla_tpu_sdc_check_halt_on_detection": True,
        "xla_tpu_sdc_replicate_llo": hardware.generation in _ONE_CORE,
        # Of two cores the other one repeats the program; one core ignores this.
        "xla_tpu_sdc_checker_alternate_megacore_cores": True,
    }
