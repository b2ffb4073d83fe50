"""A call computes each part once and keeps no memory, whatever XLA's pool of threads refuses."""

import ctypes
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from axl_cpu.llvm.host_call import _ENGINES, _compiled, _interface, module_text
from axl_cpu.llvm.processor import this_processor
from llvmlite import binding as llvm

POINTER = ctypes.c_void_p
FUNCTION = ctypes.CFUNCTYPE(POINTER, POINTER)
TASK = ctypes.CFUNCTYPE(None, POINTER)
MALLOC = ctypes.CFUNCTYPE(POINTER, ctypes.c_size_t)
NO_POOL, RESOURCE_EXHAUSTED = 9, 8


class Counted:
    """A kernel that adds 1 to the number of each part."""

    name = "counted"

    def emit_num_parts(self, e, buffers, threads):
        return buffers.result_size(0, 0)

    def emit_part(self, e, buffers, part, parts):
        at = e.at(buffers.result(0), part)
        e.store(e.build.fadd(e.load(at), e.number(1.0)), at)


@attrs.define
class Host:
    """XLA's side of a call, and the memory of the host.

    Args:
        num_threads: Of XLA's pool; None where there is no pool.
        takes: Whether the pool takes each helper in turn; it runs them after the call.
        has_memory: Whether there is any left.

    Attributes:
        errors: Codes of those that nobody has destroyed, by their places.
        memory: What nobody has freed, by its place.
    """

    num_threads: int | None
    takes: Iterator[bool] = attrs.field(default=(), converter=iter)
    has_memory: bool = True
    errors: dict[int, int] = attrs.Factory(dict)
    memory: dict = attrs.Factory(dict)
    _helpers: list = attrs.Factory(list)

    def call(self, num_parts):
        """Return the error of a call and how often each part was computed."""
        xla = {
            "THREADS": FUNCTION(self._count),
            "SCHEDULE": FUNCTION(self._schedule),
            "CREATE": FUNCTION(self._create),
            "DESTROY": TASK(lambda given: self.errors.pop(word(given, 2))),
        }
        memory = {"malloc": MALLOC(self._malloc), "free": TASK(self.memory.pop)}
        text = module_text(Counted(), this_processor())
        for name, function in memory.items():
            text = text.replace(f"@{name}(", f"@counted_{name}(")
            llvm.add_symbol(f"counted_{name}", address(function))
        _ENGINES.append(_compiled(text, this_processor()))
        handler = FUNCTION(_ENGINES[-1].get_function_address("handler"))
        counts, sizes = np.zeros(num_parts, np.float32), words({0: num_parts})
        buffer = words({3: counts.ctypes.data, 4: 1, 5: ctypes.addressof(sizes)})
        buffers = words({0: ctypes.addressof(buffer)})
        api = words({_interface()[name] // 8: address(one) for name, one in xla.items()})
        frame = words({2: ctypes.addressof(api), 14: ctypes.addressof(buffers)})
        error = handler(ctypes.addressof(frame))
        for task, shared in self._helpers:
            assert shared in self.memory  # until the last one has left
            TASK(task)(shared)
        return error, counts

    def _count(self, asked):
        if self.num_threads is None:
            return self._error(NO_POOL)
        ctypes.c_int64.from_address(word(asked, 3)).value = self.num_threads
        return None

    def _schedule(self, job):
        if not next(self.takes):
            return self._error(NO_POOL)
        self._helpers.append((word(job, 3), word(job, 4)))
        return None

    def _create(self, reason):
        assert b"no memory" in ctypes.string_at(word(reason, 2))
        return self._error(ctypes.c_int32.from_address(reason + 24).value)

    def _error(self, code):
        place = 1 + len(self.errors)
        self.errors[place] = code
        return place

    def _malloc(self, size):
        if not self.has_memory:
            return None
        block = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(block)] = block
        return ctypes.addressof(block)


def words(values):
    """Return memory with words at their numbers."""
    return (ctypes.c_uint64 * 24)(*(values.get(number, 0) for number in range(24)))


def word(place, number):
    return ctypes.c_uint64.from_address(place + 8 * number).value


def address(function):
    return ctypes.cast(function, POINTER).value


HOSTS = {
    "threads": lambda: Host(4, takes=(True, True, True)),
    "no pool": lambda: Host(None),
    "no helper": lambda: Host(4, takes=(False, False, False)),
    "the first alone": lambda: Host(4, takes=(True, False, False)),
    "the last alone": lambda: Host(4, takes=(False, False, True)),
}


@pytest.mark.parametrize("num_parts", [0, 1, 9])
@pytest.mark.parametrize("host", HOSTS)
def test_each_part_is_computed_once_whoever_helps(host, num_parts):
    host = HOSTS[host]()
    error, counts = host.call(num_parts)
    assert error is None
    np.testing.assert_array_equal(counts, 1)
    assert not host.errors
    assert not host.memory


def test_a_host_without_memory_is_an_error_of_the_call():
    host = Host(4, has_memory=False)
    error, counts = host.call(9)
    assert host.errors == {error: RESOURCE_EXHAUSTED}
    np.testing.assert_array_equal(counts, 0)
