"""What NVIDIA's assembler reports of kernels while they are compiled."""

import re

REPORTS = "MOSAIC_GPU_DUMP_PTXAS"
"""The variable by which Mosaic GPU prints the reports."""


def spilled_bytes(printed):
    """What threads keep in memory for want of registers, by kernel: the most of each."""
    found = re.findall(
        r"entry function '(\w+?)_mosaic.*?(\d+) bytes spill stores", printed, re.DOTALL
    )
    return {name: max(int(n) for other, n in found if other == name) for name, _ in found}
