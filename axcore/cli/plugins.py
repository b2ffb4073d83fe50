"""`axcore plugins` lists plugins; `axcore plugin` writes a new one, or checks one."""

import importlib.util
import json
import keyword
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import attrs
import click

from axcore import __version__
from axcore.cli import options
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
from axcore.report.table import columns


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Show every record, and errors in full.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(verbose: bool, as_json: bool) -> None:
    """List plugins, their state, and what is wrong with those that are broken."""
    host = plugin_host()
    if as_json:
        click.echo(json.dumps([described(plugin) for plugin in host.plugins()], indent=2))
    else:
        click.echo(_listing(host.plugins()))
        for plugin in host.plugins():
            if text := _details(plugin, verbose=verbose):
                click.echo(f"\n{text}")
    if host.problem is not None:
        raise host.problem


def described(plugin: Plugin) -> dict[str, Any]:
    """Return what `--json` prints of a plugin."""
    return {
        "name": plugin.name,
        "distribution": plugin.candidate.distribution,
        "version": plugin.candidate.version,
        "level": plugin.candidate.level,
        "module": plugin.candidate.module,
        "state": plugin.state,
        "import_time_s": plugin.import_time_s,
        "hooks": list(plugin.hooks),
        "records": [{"kind": record.kind, "key": record.key} for record in plugin.records],
        "error": plugin.trouble or None,
    }


def _listing(found: tuple[Plugin, ...]) -> str:
    header = ("NAME", "DISTRIBUTION", "VERSION", "LEVEL", "STATE", "IMPORT", "HOOKS")
    return columns(header, [_row(plugin) for plugin in found])


def _row(plugin: Plugin) -> tuple[str, ...]:
    took = plugin.import_time_s
    return (
        plugin.name,
        plugin.candidate.distribution,
        plugin.candidate.version,
        f"v{plugin.candidate.level}",
        plugin.state,
        "-" if took is None else f"{took * 1e3:.1f} ms",
        ", ".join(plugin.hooks) or "-",
    )


def _details(plugin: Plugin, *, verbose: bool) -> str:
    lines = []
    if plugin.trouble:
        lines += [f"{plugin.name} {plugin.state}: {plugin.trouble}"]
        lines += [f"  {line}" for line in str(plugin.error or "").splitlines()[1:]]
    elif verbose:
        lines += [f"{plugin.name}:"]
    if verbose:
        lines += [f"  {record.kind}: {record.key}" for record in plugin.records]
        if plugin.error is not None:
            lines += ["", *"".join(traceback.format_exception(plugin.error)).splitlines()]
    return "\n".join(lines)


KINDS: Mapping[str, tuple[str, str]] = {
    "command": ("command", "A command of axcore."),
    "data": ("source", "A source of text for axcore."),
    "environment": ("game", "Something that a policy acts in, for axcore."),
    "evaluation": ("questions", "A task for axcore to evaluate models on."),
    "experiment": ("experiment", "An experiment for axcore."),
    "feature": ("features", "A feature for any model of axcore, and what it costs."),
    "hardware": ("detect", "A family of chips for axcore, with its mesh rule."),
    "kernels": ("loss", "A kernel for axcore."),
    "launcher": ("engine", "An engine that starts runs of axcore."),
    "layers": ("norm", "A layer for axcore."),
    "modifier": ("modifier", "A change of configs for axcore."),
    "observer": ("journal", "Something that watches runs of axcore."),
    "op": ("op", "An operation for layers of axcore, with a kernel."),
    "quantization": ("scheme", "A low-precision format for products of axcore."),
    "reward": ("reward", "A reward for completions, for axcore."),
    "storage": ("storage", "A place for checkpoints of axcore."),
    "task": ("objective", "An objective for axcore to train by."),
    "tokenizer": ("tokenizer", "A tokenizer for axcore."),
    "writer": ("writer", "A place for metrics of axcore."),
}
"""By kind: the name of the module next to `plugin.py`, and what the distribution is."""


@click.group()
def plugin() -> None:
    """Write a new plugin, or check one that is installed."""


@plugin.command()
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(sorted(KINDS)), required=True, help="What the plugin adds."
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=options.OutputPath(is_folder=True),
    help="Folder to write; by default one of the package's name.",
)
def new(name: str, kind: str, directory: Path | None) -> None:
    """Write a plugin called NAME, that installs and passes its own tests."""
    wanted = NewPlugin.named(name, kind)
    folder = directory or Path(wanted.distribution.replace("-", "_"))
    for path in wanted.write(folder):
        click.echo(f"wrote {path}")
    click.echo(f"\nnow: pip install -e {folder} && python -m pytest {folder}")


@plugin.command()
@click.argument("name")
@click.option("--here", is_flag=True, help="Test on this machine's accelerator, not on its host.")
@click.option("--show", is_flag=True, help="Show the test file instead of running it.")
def check(name: str, here: bool, show: bool) -> None:
    """Run the suites of `axcore.testing` on everything that the plugin NAME adds.

    Exits with 1 where a test fails. Kernels for hardware you do not have are skipped, and say so.
    """
    source = check_source(name)
    if show:
        click.echo(source, nl=False)
        return
    sys.exit(run_check(source, here=here))


_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


_PREFIX = "axl-"


@attrs.frozen
class NewPlugin:
    """A plugin to write.

    Args:
        distribution: Its name everywhere, as `axl-acme`.
        kind: What it brings: one of `KINDS`.
    """

    distribution: str
    kind: str

    @classmethod
    def named(cls, name: str, kind: str) -> "NewPlugin":
        """Return the plugin for a name as a user types it, `acme` or `axl-acme`.

        Raises:
            PluginError: The name cannot be a distribution's, or a package's in Python.
        """
        short = name.removeprefix(_PREFIX)
        if not _NAME.fullmatch(short) or keyword.iskeyword(short.replace("-", "_")):
            raise PluginError(
                f"{name!r} cannot name a plugin",
                where="axcore plugin new",
                hint="use small letters and digits, with single dashes between: axl-acme",
            )
        return cls(_PREFIX + short, kind)

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the path and the text of every file."""
        package, module = self._values["package"], self._values["module"]
        for path, template in (
            ("pyproject.toml", "common/pyproject.toml"),
            ("README.md", "common/README.md"),
            ("tests/conftest.py", "common/conftest.py"),
            (f"tests/test_{package}.py", f"{self.kind}/test.py"),
            (f"{package}/__init__.py", "common/init.py"),
            (f"{package}/plugin.py", f"{self.kind}/plugin.py"),
            (f"{package}/{module}.py", f"{self.kind}/module.py"),
        ):
            yield path, Template(_template(template)).substitute(self._values)
        yield f"{package}/py.typed", ""

    def write(self, folder: Path) -> list[Path]:
        """Write the files; returns their paths.

        Raises:
            PluginError: The folder exists and is not empty; nothing is written.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PluginError(
                f"{folder} exists already",
                where="axcore plugin new",
                hint="choose another name, or another folder by --dir",
            )
        paths = []
        for name, text in self.files():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return paths

    @property
    def _values(self) -> dict[str, str]:
        module, summary = KINDS[self.kind]
        name = self.distribution.removeprefix(_PREFIX).replace("-", "_")
        return {
            "distribution": self.distribution,
            "package": self.distribution.replace("-", "_"),
            "name": name if self.kind != "hardware" else name.replace("_", ""),
            "constant": name.upper(),
            "command": name.replace("_", "-"),
            "module": module,
            "summary": summary,
            "axcore_version": ".".join(__version__.split(".")[:2]),
        }


def _template(name: str) -> str:
    file = resources.files("axcore.cli") / "templates" / f"{name}.txt"
    return file.read_text(encoding="utf-8")


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
    """Return a test file that inherits every suite that the plugin has records for.

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
    """Run a test file by pytest in an interpreter of its own; returns 0 where nothing failed.

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
