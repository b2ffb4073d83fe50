"""`axcore plugin check`: a test file for all that a plugin brings, run by pytest."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from axcore.errors import PluginError
from axcore.plugins import (
    CheckpointStorage,
    DataSource,
    DataTokenizer,
    Experiment,
    JobLauncher,
    Kernel,
    LayerVariant,
    MeshRule,
    MetricWriter,
    Modifier,
    Plugin,
    Record,
    RunObserver,
    plugin_host,
)

_SUITES: dict[type[Record], str] = {
    DataSource: "DataSourceSuite",
    DataTokenizer: "TokenizerSuite",
    CheckpointStorage: "StorageSuite",
    Experiment: "ExperimentSuite",
    JobLauncher: "LauncherSuite",
    Kernel: "KernelSuite",
    LayerVariant: "LayerSuite",
    MeshRule: "MeshRuleSuite",
    MetricWriter: "WriterSuite",
    Modifier: "ModifierSuite",
    RunObserver: "ObserverSuite",
}

_NUM_DEVICES = 8
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
_NOTHING_FAILED = (0, 5)  # pytest's codes for success, and for nothing to run


def check_source(name: str) -> str:
    """Returns a test file that inherits every suite that the plugin has records for.

    Raises:
        PluginError: There is no such plugin, or it is broken or blocked.
    """
    plugin = plugin_host().plugin(name)
    if plugin.state != "loaded":
        raise PluginError(
            f"plugin {name!r} is {plugin.state}: {plugin.trouble}",
            where=f"distribution {plugin.candidate.distribution}",
            hint="`axcore plugins -v` shows more",
        )
    return "\n".join(_lines(plugin))


def run_check(source: str, *, here: bool) -> int:
    """Runs a test file by pytest in an interpreter of its own; returns 0 where nothing failed.

    Args:
        source: Of the test file.
        here: On the accelerator of this machine; otherwise on devices of its host.

    Raises:
        PluginError: There is no pytest.
    """
    if importlib.util.find_spec("pytest") is None:
        raise PluginError(
            "axcore plugin check runs its suites by pytest, which is not installed",
            where="axcore plugin check",
            hint='pip install "axcore[test]"',
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_plugin.py"
        file.write_text(source, encoding="utf-8")
        arguments = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "--rootdir", folder]
        done = subprocess.run(
            [sys.executable, *arguments, str(file)], check=False, env=_environment(here=here)
        )
    return 0 if done.returncode in _NOTHING_FAILED else 1


def _lines(plugin: Plugin) -> Iterator[str]:
    kinds = {type(record) for record in plugin.records}
    suites = ["PluginSuite", *(suite for kind, suite in _SUITES.items() if kind in kinds)]
    yield f'"""{plugin.name}, proven by axcore\'s suites."""\n'
    yield f"from axcore.testing import {', '.join(sorted(suites))}\n"
    for suite in suites:
        yield f"\nclass Test{suite.removesuffix('Suite')}({suite}):"
        yield f'    plugin = "{plugin.name}"\n'


def _environment(*, here: bool) -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    if not here:
        environment["JAX_PLATFORMS"] = "cpu"
        flags = environment.get("XLA_FLAGS", "")
        if _DEVICE_COUNT not in flags:
            environment["XLA_FLAGS"] = f"{flags} {_DEVICE_COUNT}={_NUM_DEVICES}".strip()
    return environment
