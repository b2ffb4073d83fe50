"""Every private or unstable name of jax that axcore uses, in one place.

`tests/test_jax_compat.py` holds each against the jax that is installed. CI runs the suite with that
of `constraints.txt`; `make test JAX=0.10.0`, the oldest that axcore supports, and
`make test PYTHON=python3.12 JAX=newest` run it with others. Nothing here imports jax before it is
called.
"""

import contextlib
import functools
import hashlib
import importlib
import io
import os
import pickle
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

_DEVICES = "jax._src.xla_bridge"
# The supervisor notices a lost process by its pipe within
# milliseconds; a heartbeat would only add aborts of its own.
_NEVER_S = 7 * 86400


def user_context(default: object) -> Any:
    """Return a value that `with context(value):` sets and `context.value` reads.

    jit traces again where it differs, which it doesn't for a context variable of Python.
    """
    import jax

    return jax.make_user_context(default_value=default)  # type: ignore[no-untyped-call]


def trace_state() -> Any:
    """Return a mark of the transformation that is being traced; equal marks, equal traces."""
    from jax.extend.core import get_opaque_trace_state

    return get_opaque_trace_state()  # type: ignore[no-untyped-call]


def inner_jaxprs(params: dict[str, Any]) -> Any:
    """Return the programs that an equation's parameters hold: a scan's body, for example."""
    from jax.extend.core import jaxprs_in_params

    return jaxprs_in_params(params)


def without_dead_code(jaxpr: Any) -> Any:
    """Return a program without what its outputs don't depend on."""
    from jax.interpreters.partial_eval import dce_jaxpr

    return dce_jaxpr(jaxpr, used_outputs=True)[0]


def used_inputs(jaxpr: Any) -> list[bool]:
    """Return of each input of a program whether its outputs depend on it."""
    from jax.interpreters.partial_eval import dce_jaxpr

    used: list[bool] = dce_jaxpr(jaxpr, used_outputs=True)[1]
    return used


def distributed_state() -> Any:
    """Return what this process knows of the run that it joined.

    Its `client` is that of the coordination service, None where the process joined nobody.
    """
    from jax._src import distributed

    return distributed.global_state


def serve_coordination(port: int, process_count: int) -> Any:
    """Start the coordination service of a run, whose processes may be lost, and return it.

    It loads jaxlib and none of jax. Its `shutdown` ends what waits there.
    """
    from jaxlib import _jax

    return _jax.get_distributed_runtime_service(
        # `recoverable` lets a task leave and join without ending
        # the others; without it one lost process aborts all.
        f"[::]:{port}",
        process_count,
        heartbeat_timeout=_NEVER_S,
        recoverable=True,
    )


def new_coordination_client(address: str, process_index: int, limit_s: int) -> Any:
    """Return a client of a coordination service, to be connected."""
    from jaxlib import _jax

    return _jax.get_distributed_runtime_client(
        address,
        process_index,
        init_timeout=limit_s,
        heartbeat_timeout=_NEVER_S,
        missed_heartbeat_callback=lambda status: None,  # the supervisor knows before
        # Destruction happens at interpreter exit, where a
        # shutdown barrier would wait for processes that are gone.
        shutdown_on_destruction=False,
        use_compression=True,
    )


def join_coordination(address: str, process_count: int, process_index: int, limit_s: int) -> None:
    """Join a run whose coordination service is elsewhere; losing it ends no process."""
    state = distributed_state()
    # Not `jax.distributed.initialize`: it refuses a second call, and
    # its client ends the process by an abort when the service goes.
    client = new_coordination_client(address, process_index, limit_s)
    # State before `connect`: what it raises, such as a time limit,
    # must leave something that `leave_coordination` can shut down.
    state.coordinator_address, state.client = address, client
    state.num_processes, state.process_id = process_count, process_index
    client.connect()


def end_coordinated_waits() -> None:
    """Make every thread that waits for another process raise; any thread may call it."""
    import jax

    client = distributed_state().client
    if client is not None:
        # It raises where somebody else has shut down, and
        # where the service is gone; both are what is wanted.
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another thread was faster
            client.shutdown()


def leave_coordination() -> None:
    """Forget the run that this process joined, with all devices, arrays and programs."""
    import jax
    from jax.extend.backend import clear_backends

    end_coordinated_waits()  # a client that isn't shut down aborts when its service ends
    state = distributed_state()
    state.client, state.num_processes, state.process_id = None, 1, 0
    # Compiled programs hold the devices' client; they go before the
    # backends do, or the old client would stay alive with all its memory.
    jax.clear_caches()  # type: ignore[no-untyped-call]
    clear_backends()  # type: ignore[no-untyped-call]


def devices_have_started() -> bool:
    """Whether jax has started its devices, after which it reads no variable any more.

    It does not import jax: where nobody has, nothing has started.
    """
    # Looked up in `sys.modules`, as an import of jax takes
    # half a second and would itself answer the question.
    bridge: Any = sys.modules.get(_DEVICES)
    return bridge is not None and bool(bridge.backends_are_initialized())


def keep_programs_of_every_process() -> None:
    """Let jax's compilation cache keep what any process of a run compiles for CPU.

    jax writes what process 0 compiles and no other: elsewhere that serves all of them, but on CPU
    the key of a program differs from process to process.
    """
    from jax._src import compiler

    written: Any = compiler._cache_write
    # A closure means that it is our own `write`, or that jax has begun to wrap it.
    if written.__closure__ is not None:
        return  # it does
    # The function asks `distributed.global_state.process_id` and returns where
    # it is not 0. It gets a module's globals of its own, in which it always is.
    first = SimpleNamespace(global_state=SimpleNamespace(process_id=0))
    as_first = FunctionType(written.__code__, {**vars(compiler), "distributed": first})

    def write(key: str, seconds: float, name: str, backend: Any, *rest: Any) -> None:
        # On other platforms all processes share one key, and writing it from each would only race.
        (as_first if backend.platform == "cpu" else written)(key, seconds, name, backend, *rest)

    vars(compiler)["_cache_write"] = write


def write_programs_whole() -> None:
    """Let jax's compilation cache show a program only once all of it is written.

    jax writes it in place: a process that is killed meanwhile leaves a part, which each later start
    warns of, and none replaces.
    """
    from jax._src import lru_cache

    cache_class: Any = lru_cache.LRUCache
    in_place = cache_class.put

    def put(cache: Any, key: str, program: bytes) -> None:
        path = cache.path / f"{key}{lru_cache._CACHE_SUFFIX}"
        # jax's own eviction counts sizes under a file lock,
        # which a file that appears by a rename would escape.
        if cache.eviction_enabled:  # under a lock
            in_place(cache, key, program)
        elif not path.exists():
            # By pid: several processes may compile the same
            # program at once, and each renames a full one.
            draft = cache.path / f"{key}.{os.getpid()}"
            draft.write_bytes(program)
            draft.replace(path)

    cache_class.put = put


def is_whole_program(entry: bytes) -> bool:
    """Whether jax can read what a file of its compilation cache holds."""
    from jax._src import compilation_cache

    try:
        compilation_cache.decompress_executable(entry)
    # zstandard's, zlib's or jax's own error, depending on what is installed.
    except Exception:  # of whichever library jax compresses with
        return False
    return True


@contextlib.contextmanager
def recording_cached_programs() -> Iterator[list[bytes]]:
    """Record the programs that jax reads from its compilation cache, in any thread."""
    from jax._src import compilation_cache

    read, found = compilation_cache.get_executable_and_time, list[bytes]()

    # Patched in the module, since jax calls it by its global name; there is no hook.
    def read_and_record(key: str, options: Any, backend: Any, *rest: Any) -> Any:
        return read(key, options, _RecordingBackend(backend, found), *rest)

    vars(compilation_cache)["get_executable_and_time"] = read_and_record
    try:
        yield found
    finally:
        vars(compilation_cache)["get_executable_and_time"] = read


class _RecordingBackend:
    def __init__(self, backend: Any, found: list[bytes]) -> None:
        self._backend, self._found = backend, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def deserialize_executable(self, program: bytes, *rest: Any) -> Any:
        self._found.append(program)
        return self._backend.deserialize_executable(program, *rest)


def dump_program(compiled: Any, cached: Sequence[bytes]) -> bytes | None:
    """Return a compiled program as bytes; None where it needs functions or arrays from outside.

    Args:
        compiled: The program.
        cached: What jax read from its cache meanwhile. A program of CPU that was read cannot be
            dumped again: what comes lacks its functions. So None comes of more than one, too.
    """
    import jax
    from jax.experimental.serialize_executable import _JaxPjrtPickler

    executable = compiled._executable._unloaded_executable
    # Host callbacks and captured constants live in this process's memory and cannot be
    # written. Of several programs read from the cache nobody can say which is this one.
    if executable.host_callbacks or compiled._params.const_args or len(cached) > 1:
        return None

    class Pickler(_JaxPjrtPickler):
        def persistent_id(self, found: Any) -> Any:
            named = super().persistent_id(found)  # type: ignore[no-untyped-call]
            # The bytes as they were read: XLA's CPU client loses a
            # loaded program's functions when it serialises it again.
            return ("exec", cached[0]) if cached and named and named[0] == "exec" else named

    info, in_tree = jax.tree.flatten(compiled.args_info)
    # Trees of numbers instead of the PyTreeDefs, which jax does not pickle where they have
    # nodes of other classes than its own; `load_program` reads the structures off them.
    trees = [jax.tree.unflatten(one, range(one.num_leaves)) for one in (in_tree, compiled.out_tree)]
    with io.BytesIO() as file:
        Pickler(file).dump((executable, info, compiled._no_kwargs))
        return pickle.dumps((file.getvalue(), trees))


def load_program(dumped: bytes, devices: Sequence[Any]) -> Any:
    """Return the compiled program of such bytes, on devices like those it was compiled for."""
    import jax
    from jax.experimental import serialize_executable

    # Only from a folder that this user's own launch made: unpickling runs what it reads.
    program, trees = pickle.loads(dumped)
    in_tree, out_tree = map(jax.tree.structure, trees)
    return serialize_executable.deserialize_and_load(
        program, in_tree, out_tree, devices[0].client, devices
    )


def device_grid(sizes: Sequence[int], devices: Sequence[Any]) -> Any:
    """Return devices in the order in which their links serve a mesh of such sizes best.

    An axis may take a part of one dimension of a torus, such as 8 of 16, where no other way fits,
    which `jax.make_mesh` does for some chips only.
    """
    from jax.experimental import mesh_utils

    # Without splitting, jax refuses meshes such as 8 x 8 on a 16 x 4 torus.
    return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)


@contextlib.contextmanager
def handing_over_programs(see: Callable[[Any, bytes], None]) -> Iterator[None]:
    """Call `see` with every module that jax is about to compile; what it raises stops that.

    Args:
        see: Takes the module, and a digest of all else that the result depends on: compiler
            options, flags of the environment, and the devices with their topology. jax's
            compilation cache has these in its keys, too.
    """
    from jax._src import cache_key, compiler

    compile_module: Any = compiler.compile_or_get_cached

    def hand_over(
        backend: Any, module: Any, devices: Any, options: Any, *rest: Any, **named: Any
    ) -> Any:
        # The module's own text is not hashed here: who asks
        # compares it in its own way, and it is the largest part.
        rest_of_key = hashlib.sha256()
        cache_key._hash_xla_flags(rest_of_key, [])
        cache_key._hash_serialized_compile_options(rest_of_key, options)  # type: ignore[no-untyped-call]
        cache_key._hash_accelerator_config(rest_of_key, devices)
        see(module, rest_of_key.digest())
        return compile_module(backend, module, devices, options, *rest, **named)

    # All private: in one file, so that a new jax is one file's work.
    vars(compiler)["compile_or_get_cached"] = hand_over
    try:
        yield
    finally:
        vars(compiler)["compile_or_get_cached"] = compile_module


def forget_compiled(lowered: Any) -> None:
    """Let jax compile a lowered program even if this process has compiled it before."""
    from jax._src.interpreters import pxla

    # jax keeps the executable at the lowering and once more in a cache by the computation.
    lowered._lowering._executable = None
    pxla._cached_compilation.cache_clear()


def mlir_ir() -> Any:
    """Return the module of MLIR's classes, in which jax's programs are written."""
    from jaxlib.mlir import ir

    return ir


def read_mlir_bytecode(bytecode: bytes) -> Any:
    """Return a module of MLIR that was written as bytes, such as a kernel in a custom call."""
    with _kernel_context():
        return mlir_ir().Module.parse(bytecode)


@functools.cache
def _kernel_context() -> Any:
    """Return a context with the dialects of kernels of all hardware that jaxlib has."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import _mlir_libs

    context: Any = mlir.make_ir_context()
    context.allow_unregistered_dialects = True  # they are written in versions of other names
    for found in pkgutil.iter_modules(_mlir_libs.__path__, f"{_mlir_libs.__name__}."):
        if found.name.endswith("_ext"):
            register = getattr(importlib.import_module(found.name), "register_dialect", None)
            if register is not None:
                register(context)
    return context
