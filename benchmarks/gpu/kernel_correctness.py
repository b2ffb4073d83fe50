"""The kernels for GPUs against their references on the GPU at hand; `run.sh` runs it.

The suite's own tests run the kernels interpreted, since a GPU is seldom there.
"""

from axcore.testing import KernelSuite


class TestKernels(KernelSuite):
    """Every kernel of the plugin, as it is compiled for the chip."""

    plugin = "axl-gpu"
