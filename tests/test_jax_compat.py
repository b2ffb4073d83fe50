"""Every private or unstable name of jax does what axcore takes it for, in the jax that is here."""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from axcore import _jax_compat


def test_a_user_context_is_traced_anew_where_it_differs():
    context = _jax_compat.user_context("default")
    seen = []

    @jax.jit
    def add_one(x):
        seen.append(context.value)
        return x + 1

    for _ in range(2):
        add_one(jnp.zeros(()))
        with context("inner"):
            add_one(jnp.zeros(()))
            assert context.value == "inner"
        assert context.value == "default"
    assert seen == ["default", "inner"]


def test_marks_of_a_trace_are_equal_within_it_alone():
    outside = _jax_compat.trace_state()
    inside = []
    jax.make_jaxpr(lambda x: inside.append(_jax_compat.trace_state()) or x)(1.0)
    jax.make_jaxpr(lambda x: inside.append(_jax_compat.trace_state()) or x)(1.0)
    assert outside == _jax_compat.trace_state()
    assert outside not in inside
    assert inside[0] != inside[1]


def test_programs_within_equations_are_found():
    program = jax.make_jaxpr(lambda xs: lax.scan(lambda c, x: (c + jnp.sin(x), c), 0.0, xs))
    (equation,) = [one for one in program(jnp.ones(3)).jaxpr.eqns if one.primitive.name == "scan"]
    names = [
        inner.primitive.name
        for jaxpr in _jax_compat.inner_jaxprs(equation.params)
        for inner in jaxpr.eqns
    ]
    assert "sin" in names


REJOINING = """
import socket
from axcore import _jax_compat
for _ in range(2):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    service = _jax_compat.serve_coordination(port, 1)
    _jax_compat.join_coordination(f"localhost:{port}", 1, 0, 30)
    import jax
    array = jax.numpy.ones(3) + 1
    _jax_compat.distributed_state().client.key_value_set("key", "value")
    _jax_compat.leave_coordination()
    assert not _jax_compat.devices_have_started()
    service.shutdown()
print("left twice")
"""


@pytest.mark.slow
def test_a_process_leaves_its_run_and_joins_another_with_new_devices():
    ran = subprocess.run(
        [sys.executable, "-c", REJOINING], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout == "left twice\n", ran.stderr


def test_what_is_computed_in_vain_is_left_out():
    def tangent(x):
        jnp.sin(x)
        return jnp.tan(x)

    traced = jax.make_jaxpr(tangent)(1.0).jaxpr
    assert [one.primitive.name for one in traced.eqns] == ["sin", "tan"]
    live = _jax_compat.without_dead_code(traced)
    assert [one.primitive.name for one in live.eqns] == ["tan"]


def test_a_process_that_joined_nobody_has_no_client():
    assert _jax_compat.distributed_state().client is None
    assert not jax.distributed.is_initialized()


JOIN = """
import sys, jax
from axcore._jax_compat import distributed_state
jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=1, process_id=0)
state = distributed_state()
state.client.key_value_set("greeting", "hello")
assert state.client.blocking_key_value_get("greeting", 1000) == "hello"
assert (state.num_processes, state.process_id) == (1, 0)
"""


@pytest.mark.slow
def test_a_process_that_joined_has_a_client():
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    subprocess.run([sys.executable, "-c", JOIN, str(port)], check=True)


DEVICES = """
import sys
from axcore._jax_compat import devices_have_started
assert not devices_have_started() and "jax" not in sys.modules
import jax
assert not devices_have_started()
jax.devices()
assert devices_have_started()
"""


def test_devices_start_when_they_are_asked_for():
    subprocess.run([sys.executable, "-c", DEVICES], check=True)


KEEPING = """
import sys, warnings
import jax, jax.numpy as jnp
from jax._src import distributed
from axcore._jax_compat import keep_programs_of_every_process
distributed.global_state.process_id = 1
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.jit(lambda x: x + 1).lower(1.0).compile()
from pathlib import Path
before = len(list(Path(sys.argv[1]).glob("*-cache")))
keep_programs_of_every_process()
jax.jit(lambda x: x + 2).lower(1.0).compile()
print(before, len(list(Path(sys.argv[1]).glob("*-cache"))))
"""


@pytest.mark.slow
def test_any_process_keeps_what_it_compiles_for_cpu(tmp_path):
    command = [sys.executable, "-c", KEEPING, str(tmp_path)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["0", "1"]


WRITING = """
import os, sys
import jax
from jax._src.path import Path
from axcore._jax_compat import write_programs_whole
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
write_programs_whole()
kind = type(Path(sys.argv[1]))
write = kind.write_bytes
def die_in_the_middle(path, data):
    write(path, data[: len(data) // 2])
    os._exit(3)
if sys.argv[2] == "die":
    kind.write_bytes = die_in_the_middle
jax.jit(lambda x: x + 1).lower(1.0).compile()
"""


@pytest.mark.slow
def test_a_process_that_ends_while_it_writes_a_program_leaves_no_part_of_it(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for way, code, kept in (("die", 3, 0), ("live", 0, 1)):
        command = [sys.executable, "-W", "error", "-c", WRITING, str(tmp_path), way]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr
        assert len(list(tmp_path.glob("*-cache"))) == kept


DUMPING = """
import pathlib, sys
import jax
from axcore._jax_compat import dump_program, recording_cached_programs
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
lowered = jax.jit(lambda x, *, y: {"sum": jax.numpy.sin(x) @ y, "both": (x, y)}).lower(
    jax.numpy.ones((8, 8)), y=jax.numpy.ones((8, 8)))
with recording_cached_programs() as cached:
    compiled = lowered.compile()
pathlib.Path(sys.argv[2]).write_bytes(dump_program(compiled, cached))
print(len(cached))
"""


@pytest.mark.slow
def test_a_program_that_is_dumped_and_loaded_gives_the_same_tree(tmp_path):
    x = jnp.arange(64.0).reshape(8, 8)
    for is_cached in (False, True):  # as read from jax's cache by the second process
        command = [sys.executable, "-c", DUMPING, str(tmp_path / "cache"), str(tmp_path / "dump")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.stdout == f"{int(is_cached)}\n", ran.stderr
        dumped = (tmp_path / "dump").read_bytes()
        found = _jax_compat.load_program(dumped, jax.devices()[:1])(x, y=x)
        np.testing.assert_allclose(found["sum"], np.sin(x) @ x, rtol=1e-4)
        assert [np.array_equal(one, x) for one in found["both"]] == [True, True]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: jax.debug.print("{}", x),
        lambda x: jax.pure_callback(lambda value: value, x, x),
    ],
)
def test_a_program_that_calls_functions_of_its_process_is_not_dumped(call):
    compiled = jax.jit(call).lower(jnp.ones(())).compile()
    assert _jax_compat.dump_program(compiled, ()) is None


def test_a_grid_of_devices_has_each_of_them_once():
    grid = _jax_compat.device_grid((2, 4), jax.devices()[:8])
    assert grid.shape == (2, 4)
    assert set(grid.flat) == set(jax.devices()[:8])
