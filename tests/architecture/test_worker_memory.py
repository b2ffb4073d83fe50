"""Processes of the suite are as many as cores and memory are for, and free what is over."""

import jax
import jax.numpy as jnp
import pytest
import worker_memory
from worker_memory import num_workers, pytest_runtest_teardown, resident_mib


@pytest.mark.parametrize(
    ("cores", "gib", "workers"), [(2, 24, 3), (2, 6, 2), (8, 16, 7), (64, 128, 63), (4, 1, 1)]
)
def test_workers_follow_cores_and_memory(cores, gib, workers):
    assert num_workers(cores, gib * 1024) == workers


def test_programs_are_freed_between_two_files_of_a_process_that_has_grown(request, monkeypatch):
    class OfAnotherFile:
        path = "elsewhere.py"

    double = jax.jit(lambda x: 2 * x)
    double(jnp.ones(3))
    monkeypatch.setattr(worker_memory, "CLEARS_AT_MIB", 10 * resident_mib())
    pytest_runtest_teardown(request.node, OfAnotherFile())
    assert double._cache_size() == 1
    monkeypatch.setattr(worker_memory, "CLEARS_AT_MIB", 0)
    pytest_runtest_teardown(request.node, request.node)
    assert double._cache_size() == 1
    pytest_runtest_teardown(request.node, OfAnotherFile())
    assert double._cache_size() == 0
