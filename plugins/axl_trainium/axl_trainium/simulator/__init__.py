"""A small simulator of NKI in numpy: the part of it that this plugin's kernels use, and no more.

It replaces `import nki`. It computes what each instruction is documented to compute, in
the order of the program, and refuses what the hardware could not do. It knows nothing of time: how
engines overlap, and what anything costs, is not modelled.

Read `machine.py` for the memories and their limits, then `isa.py`.
"""

from axl_trainium.simulator import isa, language
from axl_trainium.simulator.kernel import jit

__all__ = ["isa", "jit", "language"]
