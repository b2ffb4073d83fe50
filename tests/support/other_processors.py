"""Kernels of axl-cpu as other processors have them: compiled for those, or run here.

A processor of x86 runs what is compiled for one with shorter vectors.
"""

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import jax
import pytest
from axl_cpu.llvm import host_call as calls
from axl_cpu.llvm.host_call import HostKernel, assembly, module_text, registered
from axl_cpu.llvm.processor import Processor, this_processor

SHORTER = tuple(
    shorter
    for name, features in (("x86-64-v3", "+avx2,+fma"), ("x86-64", ""))
    for shorter in [Processor.of(this_processor().triple, name, features)]
    if platform.machine() == "x86_64" and shorter.lanes < this_processor().lanes
)
"""Processors with shorter vectors than this one's, whose code it runs."""

RUNNING_HERE = (this_processor(), *SHORTER)


@attrs.frozen
class Renamed:
    """A kernel by a name of its own, since XLA knows one kernel by each."""

    kernel: HostKernel
    processor: Processor

    @property
    def name(self) -> str:
        return f"{self.kernel.name}_for_{self.processor.name}".replace("-", "_")

    def emit_num_parts(self, e, buffers, threads):
        return self.kernel.emit_num_parts(e, buffers, threads)

    def emit_part(self, e, buffers, part, parts):
        self.kernel.emit_part(e, buffers, part, parts)


def on(processor: Processor, function: Callable) -> Callable:
    """Returns a function of axcore's kernels as it is on a processor whose code runs here."""
    theirs = lambda kernel: registered(Renamed(kernel, processor))  # noqa: E731

    def run(*args):
        with _in_place_of_this(processor, theirs):
            return function(*args)

    return run


def assemblies(processor: Processor, function: Callable, inputs, spec) -> list[str]:
    """Returns the assembly of all kernels that a function calls on a processor."""
    found = []

    def compiled(kernel: HostKernel) -> str:
        found.append(assembly(module_text(kernel, processor), processor))
        return kernel.name

    with _in_place_of_this(processor, compiled):
        jax.eval_shape(lambda given: function(given, spec), inputs)
    return found


@contextmanager
def _in_place_of_this(processor: Processor, registered: Callable) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("axl_cpu.") and hasattr(module, "this_processor"):
                patch.setattr(module, "this_processor", lambda: processor)
        patch.setattr(calls, "registered", registered)
        yield
