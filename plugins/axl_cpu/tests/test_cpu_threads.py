"""Kernels are right whoever calls them at once: their parts are those of all threads."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from axl_cpu.kernels.decode_attention.api import cpu_decode_attention
from axl_cpu.kernels.decode_matmul.api import cpu_decode_matmul

from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.decode_attention.kernels import decode_attention_reference
from axcore.ops.decode_matmul.kernels import decode_matmul_reference
from axcore.testing.contracts import DecodeMatmulTestCase, DecodeTestCase

NUM_THREADS, CALLS_OF_EACH = 8, 100

MATMUL = cpu_decode_matmul, decode_matmul_reference
ATTENTION = cpu_decode_attention, decode_attention_reference
SAMPLES = (
    (*MATMUL, DecodeMatmulTestCase(name="row", rows=1, in_dim=512, out_dim=5000)),
    (*MATMUL, DecodeMatmulTestCase(name="rows", rows=7, in_dim=256, out_dim=3000)),
    (*MATMUL, DecodeMatmulTestCase(name="panels", rows=40, out_dim=3000, is_in_panels=True)),
    (*MATMUL, DecodeMatmulTestCase(name="compared", rows=2, out_dim=3001, transposed=True)),
    (*ATTENTION, DecodeTestCase(name="many", lengths=(200, 3, 90) * 7, capacity=200)),
)
"""Each has more parts than a pool has threads on a machine with few cores."""


@pytest.fixture(scope="module")
def calls():
    """Return jitted functions with their arguments and what each gives alone, which is right."""
    made = []
    for function, reference, sample in SAMPLES:
        inputs, spec = sample.make()
        jitted = jax.jit(function, static_argnums=1)
        alone = jitted(inputs, spec)
        wanted = reference(inputs, spec)
        assert relative_error(alone, wanted) <= TOLERANCES["float32"].forward
        made.append((jitted, inputs, spec, np.asarray(alone)))
    return made


@pytest.mark.slow
def test_calls_of_several_threads_give_what_each_gives_alone(calls):
    def one_thread(index):
        """Each begins elsewhere, so that different kernels run at the same time."""
        results = []
        for step in range(CALLS_OF_EACH):
            jitted, inputs, spec, alone = calls[(index + step) % len(calls)]
            results.append((jitted(inputs, spec), alone))
        for result, alone in results:
            np.testing.assert_array_equal(result, alone)
        return len(results)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        counts = list(pool.map(one_thread, range(NUM_THREADS)))
    assert counts == [CALLS_OF_EACH] * NUM_THREADS


@pytest.mark.slow
def test_calls_on_several_devices_give_what_one_gives(calls):
    devices = jax.devices()[:8]
    results = [
        (jitted(jax.device_put(inputs, device), spec), alone)
        for _ in range(4)
        for jitted, inputs, spec, alone in calls
        for device in devices
    ]
    for result, alone in results:
        np.testing.assert_array_equal(result, alone)
    assert {device for result, _ in results for device in result.devices()} == set(devices)
