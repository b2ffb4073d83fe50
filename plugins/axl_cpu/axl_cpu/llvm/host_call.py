"""`host_call`: a kernel that is emitted for a few static choices, compiled, and called by XLA.

XLA's interface for foreign functions passes the buffers; its pool of threads computes the parts.
"""

import ctypes
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, Protocol

import jax
import llvmlite.binding as llvm
from jax import Array
from llvmlite import ir

from axl_cpu.llvm.emitter import INT, POINTER, Emitter, Value
from axl_cpu.llvm.processor import Processor, this_processor
from axl_cpu.llvm.xla_ffi import (
    OFFSETS,
    api_version,
    field_offsets,
    installed_header,
    interface_problem,
)

_LOCK = threading.Lock()
_DATA, _DIMENSIONS = (OFFSETS["XLA_FFI_Buffer"][name] for name in ("data", "dims"))


class HostKernel(Protocol):
    """What a kernel emits; hashable, as it is compiled once."""

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        ...

    def emit_num_parts(self, e: Emitter, buffers: "Buffers", threads: Value) -> Value:
        """Write how many parts there are, and return that."""
        ...

    def emit_part(self, e: Emitter, buffers: "Buffers", part: Value, parts: Value) -> None:
        """Write the computation of a part."""
        ...


class Buffers:
    """The arguments and results of a call, of which each field is loaded where it is asked for.

    Args:
        e: What writes the loads.
        args: XLA's arguments.
        rets: XLA's results.
    """

    def __init__(self, e: Emitter, args: Value, rets: Value) -> None:
        self._e, self._args, self._rets = e, args, rets

    def argument(self, index: int) -> Value:
        """Return the place of an argument's numbers."""
        return self._field(self._args, index, _DATA)

    def result(self, index: int) -> Value:
        """Return the place of a result's numbers."""
        return self._field(self._rets, index, _DATA)

    def size(self, argument: int, dimension: int) -> Value:
        """Return a dimension of an argument."""
        return self._size(self._args, argument, dimension)

    def result_size(self, result: int, dimension: int) -> Value:
        """Return a dimension of a result."""
        return self._size(self._rets, result, dimension)

    def _size(self, buffers: Value, index: int, dimension: int) -> Value:
        dimensions = self._field(buffers, index, _DIMENSIONS)
        return self._e.load(self._e.at(dimensions, dimension, "int64"), "int64")

    def _field(self, buffers: Value, index: int, offset: int) -> Value:
        buffer = self._e.load(self._e.at(buffers, index, "pointer"), "pointer")
        return self._e.load(self._e.at(buffer, offset, "int8"), "pointer")


def host_call(
    kernel: HostKernel,
    arguments: Sequence[Array],
    result: jax.ShapeDtypeStruct,
    *,
    layouts: Sequence[tuple[int, ...] | None] | None = None,
) -> Array:
    """Return what a kernel makes of arrays, on the host; it has no gradient.

    Args:
        kernel: What is called.
        arguments: Its arguments.
        result: Shape and dtype of its one result.
        layouts: The order of each argument's dimensions in memory, major to minor; None of one, or
            of all, is that of its shape.
    """
    call = jax.ffi.ffi_call(
        registered(kernel), result, vmap_method="sequential", input_layouts=layouts
    )
    returned: Array = call(*arguments)
    return returned


def registered(kernel: HostKernel) -> str:
    """Return the name by which XLA calls a kernel, compiled for this processor."""
    # Tracing may run in several threads, and `functools.cache` alone lets two of them compile and
    # register one name.
    with _LOCK:
        return _registered(kernel)


@functools.cache
def _registered(kernel: HostKernel) -> str:
    name = f"axl_cpu_{kernel.name}"
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    engine = _compiled(module_text(kernel, this_processor()), this_processor())
    address = engine.get_function_address("handler")
    jax.ffi.register_ffi_target(name, new_capsule(address, None, None), platform="cpu")
    # LLVM frees the code with its engine.
    _ENGINES.append(engine)
    return name


_ENGINES: list[Any] = []
"""They own the compiled code, which XLA may call until the process ends."""


def module_text(kernel: HostKernel, processor: Processor) -> str:
    """Return a kernel with all that surrounds it, in LLVM's language."""
    module = ir.Module(kernel.name)
    module.triple = processor.triple

    def function(name: str, gives: Any, *takes: Any) -> Emitter:
        kind = ir.FunctionType(gives, [POINTER, POINTER, *takes])
        return Emitter(ir.Function(module, kind, name), processor)

    e = function("num_parts", INT, INT)
    e.give(kernel.emit_num_parts(e, Buffers(e, *e.arguments[:2]), e.arguments[2]))
    e = function("part", ir.VoidType(), INT, INT)
    kernel.emit_part(e, Buffers(e, *e.arguments[:2]), *e.arguments[2:])
    e.give()
    around = Template((Path(__file__).parent / "host_call.ll").read_text())
    return f"{module}\n{around.substitute(_interface(), PAUSE=processor.pause)}"


def assembly(text: str, processor: Processor) -> str:
    """Return the assembly of a module for a processor, which need not be this one."""
    machine = _machine(processor)
    return str(machine.emit_assembly(_optimised(text, machine)))


def _compiled(text: str, processor: Processor) -> Any:
    machine = _machine(processor)
    engine = llvm.create_mcjit_compiler(_optimised(text, machine), machine)
    engine.finalize_object()
    return engine


def _optimised(text: str, machine: Any) -> Any:
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return module


@functools.cache
def _machine(processor: Processor) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.name, features=processor.features, opt=3, jit=True
    )


@functools.cache
def _interface() -> dict[str, int]:
    """Return what `host_call.ll` leaves open of XLA's interface, by the header."""
    assert interface_problem() is None  # kernels say before that they cannot serve
    header = installed_header()
    major, minor = api_version(header)
    functions = field_offsets(header)["XLA_FFI_Api"]
    return {
        "MAJOR": major,
        "MINOR": minor,
        "CREATE": functions["XLA_FFI_Error_Create"],
        "DESTROY": functions["XLA_FFI_Error_Destroy"],
        "SCHEDULE": functions["XLA_FFI_ThreadPool_Schedule"],
        "THREADS": functions["XLA_FFI_ThreadPool_NumThreads"],
    }
