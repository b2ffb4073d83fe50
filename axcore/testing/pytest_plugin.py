"""Fixtures for tests of plugins; pytest finds this file by axcore's entry point.

It imports pytest alone: what a fixture needs is imported when a test asks for the fixture.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from axcore.plugins import PluginHost
    from axcore.testing.command_line import CommandLine

pytest.register_assert_rewrite(
    *(
        f"axcore.testing.{name}_suite"
        for name in (
            "compile",
            "data_source",
            "experiment",
            "kernel",
            "launcher",
            "layer",
            "mesh_rule",
            "modifier",
            "observer",
            "plugin",
            "storage",
            "tokenizer",
            "writer",
        )
    )
)

COMPILE_FOR = "--compile-for"
OUTCOMES = "--outcomes"
ONLY_LOWER = "--only-lower"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the hardware to compile for."""
    parser.addoption(
        COMPILE_FOR,
        metavar="TARGET",
        help="run only the tests that compile for TARGET; axcore.testing.compile_tests runs all",
    )
    parser.addoption(
        OUTCOMES, metavar="FILE", help="write a line of JSON to FILE for each test that passed"
    )
    parser.addoption(
        ONLY_LOWER,
        action="store_true",
        help=f"compile nothing; write to the file of {OUTCOMES} what each test would compile",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that compile; notes what passed where that was asked for."""
    config.addinivalue_line(
        "markers", f"compile(target): compiles for hardware you do not have; see {COMPILE_FOR}"
    )
    if config.getoption(OUTCOMES):
        from axcore.testing.compile_outcomes import CompileOutcomes

        file, only_lowers = Path(config.getoption(OUTCOMES)), config.getoption(ONLY_LOWER)
        config.pluginmanager.register(CompileOutcomes(file, only_lowers=only_lowers))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the target asked for; without one, skips all that compile."""
    target = config.getoption(COMPILE_FOR)
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("compile")
        meant = marker.args[0] if marker is not None else None
        if target is None and meant is not None:
            item.add_marker(pytest.mark.skip(reason=f"compiles for {meant}"))
        (kept if target in (None, meant) else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


@pytest.fixture(scope="session")
def compile_devices(request: pytest.FixtureRequest) -> Any:
    """Devices of the hardware that `--compile-for` names, to compile for and not to run on."""
    from axcore.aot.targets import compile_devices, find_aot_target
    from axcore.plugins import Hardware

    hardware = Hardware.parse(request.config.getoption(COMPILE_FOR))
    return compile_devices(find_aot_target(hardware), hardware)


@pytest.fixture
def host() -> "PluginHost":
    """The plugins that are installed, as a run sees them."""
    from axcore.plugins import plugin_host

    return plugin_host()


@pytest.fixture
def make_dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A function that installs a distribution for the length of one test, without pip.

    `make_dist("axl-acme", SOURCE_OF_PLUGIN_PY, files={"flash.py": SOURCE})`; more in
    `axcore.testing.make_dist`. `plugin_host()` finds it from then on.
    """
    from axcore.plugins import plugin_host
    from axcore.testing.command_line import make_dist as write

    root = tmp_path / "installed"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    before = set(sys.modules)

    def install(name: str, plugin: str = "", **details: Any) -> Path:
        made = write(root, name, plugin, **details)
        importlib.invalidate_caches()
        plugin_host.cache_clear()
        return made

    yield install
    for name in set(sys.modules) - before:
        if str(root) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]
    plugin_host.cache_clear()


@pytest.fixture
def cpu_mesh() -> Callable[..., "Mesh"]:
    """A function that makes a mesh of host devices: `cpu_mesh(fsdp=2, model=2)`.

    Skips the test where there are not as many; `XLA_FLAGS=--xla_force_host_platform_device_count=8`
    before jax starts gives 8.
    """

    def make(**sizes: int) -> "Mesh":
        import math

        import jax

        from axcore.parallel import make_mesh

        wanted = math.prod(sizes.values())
        devices = jax.devices("cpu")
        if len(devices) < wanted:
            pytest.skip(f"needs {wanted} host devices; there are {len(devices)}")
        return make_mesh(sizes, devices[:wanted])

    return make


@pytest.fixture
def tiny_experiment(tmp_path: Path) -> Any:
    """A full training config so small that a run of it takes a second or two."""
    from axcore.testing.tiny import small_experiment

    return small_experiment(tmp_path / "text")


@pytest.fixture
def cli(tmp_path: Path) -> "CommandLine":
    """A function that runs `axcore` as a user would, in a fresh interpreter and folder.

    `cli("train", "tiny", "--set", "max_steps=2")` returns exit code, output and errors. What
    `make_dist` installed is there, too.
    """
    from axcore.testing.command_line import CommandLine

    return CommandLine(folder=tmp_path)
