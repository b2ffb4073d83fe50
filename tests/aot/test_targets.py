"""Who compiles for what, and what is said where nobody can."""

import subprocess
import sys

import pytest

from axcore.aot import find_aot_target
from axcore.aot.targets import compile_environment
from axcore.errors import PluginError
from axcore.plugins import (
    AotTarget,
    CompilerOptions,
    Hardware,
    Ref,
    plugin_host,
    requires,
    wanted_compiler_options,
)

ACME = Hardware(family="acme", generation="x1", chips=4)


def target(name="acme_compiler", **fields):
    return AotTarget(name=name, requires=requires(family="acme"), summary="Acme's", **fields)


def test_the_host_compiles_for_its_own_devices():
    hardware = Hardware.parse("cpu-4")
    found = find_aot_target(hardware)
    assert (found.name, found.plugin, found.limits) == ("host", "core", "")
    environment = compile_environment(found, hardware)
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert "--xla_force_host_platform_device_count=4" in environment["XLA_FLAGS"].split()


def test_flags_of_the_users_own_stay_beside_those_that_are_needed(monkeypatch):
    own = "--xla_force_host_platform_device_count=2 --xla_dump_to=here"
    monkeypatch.setenv("XLA_FLAGS", own)
    hardware = Hardware.parse("cpu-4")
    flags = compile_environment(find_aot_target(hardware), hardware)["XLA_FLAGS"].split()
    assert flags == ["--xla_dump_to=here", "--xla_force_host_platform_device_count=4"]


def test_only_programs_that_jax_could_load_again_are_cached():
    is_off = {}
    for name in ("cpu-4", "tpu-v5p-8", "gpu-h100-8"):
        hardware = Hardware.parse(name)
        (found,) = (
            one for one in plugin_host().records(AotTarget) if one.requires(hardware) is None
        )
        is_off[name] = compile_environment(found, hardware).get("JAX_ENABLE_COMPILATION_CACHE")
    assert is_off == {"cpu-4": None, "tpu-v5p-8": "false", "gpu-h100-8": "false"}


def test_every_family_that_is_installed_can_be_compiled_for():
    targets = plugin_host().records(AotTarget)
    for name in ("tpu-v5p-8", "tpu-v5e-256", "gpu-h100-8", "trainium-trn2-16"):
        assert [one.requires(Hardware.parse(name)) for one in targets].count(None) == 1, name


def test_hardware_that_nobody_compiles_for_is_an_error_with_what_was_asked():
    with pytest.raises(
        PluginError, match=r"no plugin says how to compile for acme-x1-4: .*host \(core\) wants"
    ):
        find_aot_target(ACME)


def test_a_compiler_that_is_not_installed_says_what_to_install():
    missing = target(modules=("json", "libacme"), install="axl-acme[aot]")
    with pytest.raises(PluginError, match=r"acme_compiler, is not installed.* libacme") as raised:
        find_aot_target(ACME, [missing])
    assert raised.value.hint == 'pip install "axl-acme[aot]"'


def test_modules_of_packages_that_are_missing_are_missing():
    with pytest.raises(PluginError, match=r"there is no libacme\.compiler"):
        find_aot_target(ACME, [target(modules=("libacme.compiler",), install="axl-acme[aot]")])


def test_two_that_compile_for_one_hardware_are_an_error():
    with pytest.raises(PluginError, match=r"one .* and two .* both compile for acme-x1-4"):
        find_aot_target(ACME, [target("one"), target("two")])


def options(name, fn, **fields):
    return CompilerOptions(
        name=name, requires=requires(family="acme"), fn=Ref(fn), summary="Options", **fields
    )


def test_options_are_those_of_every_record_for_the_hardware():
    found = wanted_compiler_options(ACME, [options("a", f"{__name__}:fast")])
    assert found == {"acme_fast": True}
    assert wanted_compiler_options(Hardware.parse("cpu-1"), [options("a", "gone:gone")]) == {}


def test_options_of_train_steps_are_not_those_of_programs_that_serve():
    records = [
        options("a", f"{__name__}:fast", serves=True),
        options("b", f"{__name__}:slow", serves=False),
    ]
    assert wanted_compiler_options(ACME, records, serves=True) == {"acme_fast": True}
    assert wanted_compiler_options(ACME, records) == {"acme_fast": False}


def test_two_values_of_one_option_are_an_error():
    with pytest.raises(PluginError, match=r"wants acme_fast=True and .* wants acme_fast=False"):
        wanted_compiler_options(
            ACME, [options("a", f"{__name__}:fast"), options("b", f"{__name__}:slow")]
        )


def test_options_that_are_none_are_an_error():
    with pytest.raises(
        PluginError, match="expected a mapping from option to a str, bool, int or float"
    ):
        wanted_compiler_options(ACME, [options("a", f"{__name__}:strange")])


def fast(hardware):
    return {"acme_fast": True}


def slow(hardware):
    return {"acme_fast": False}


def strange(hardware):
    return {"acme_fast": [1]}


MANY_DEVICES = """\
import jax
import numpy as np
from axcore.aot.hlo.collectives import collectives
from axcore.aot.targets import host_devices
from axcore.aot.hlo.program import parse_program
from axcore.plugins import Hardware

hardware = Hardware.parse("cpu-4096")
mesh = jax.sharding.Mesh(np.array(host_devices(hardware)), ("data",))
rows = jax.ShapeDtypeStruct((8192, 6), "float32", sharding=jax.NamedSharding(mesh, jax.P("data")))
whole = jax.NamedSharding(mesh, jax.P())
lowered = jax.jit(lambda rows: rows.sum(axis=0), out_shardings=whole).lower(rows)
compiled = lowered.compile()
(added,) = collectives(parse_program(compiled.as_text()), hardware)
print(compiled.memory_analysis().argument_size_in_bytes, added.kind, added.group)
"""


@pytest.mark.long
def test_programs_compile_for_more_devices_than_a_process_may_have():
    hardware = Hardware.parse("cpu-4096")
    ran = subprocess.run(
        [sys.executable, "-c", MANY_DEVICES],
        env=compile_environment(find_aot_target(hardware), hardware),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(2 * 6 * 4), "all-reduce", "4096"]
