"""`PluginSuite`: a plugin loads, without jax, and everything that it names is there."""

import subprocess
import sys
from collections.abc import Callable
from inspect import isclass
from typing import Any

import attrs
import click

from axcore.config import find_config, is_config
from axcore.hardware.families import parse_target
from axcore.plugins import (
    CheckpointStorage,
    Command,
    DataSource,
    DataTokenizer,
    DataTransform,
    DoctorCheck,
    EnvironmentFlags,
    Finding,
    HardwareFamily,
    JobLauncher,
    Kernel,
    LayerVariant,
    MetricWriter,
    Modifier,
    Record,
    Ref,
    RewardFunction,
    RolloutEnvironment,
    RunObserver,
    TrainingTask,
    plugin_host,
    wanted_flags,
)
from axcore.testing.suite import Suite


class PluginSuite(Suite):
    """Proves that a plugin is whole: `class TestPlugin(PluginSuite): plugin = "axl-acme"`."""

    def test_plugin_loads_and_brings_something(self) -> None:
        """No run would refuse it."""
        plugin = plugin_host().plugin(self.plugin)
        assert (plugin.state, plugin.trouble) == ("loaded", "")
        assert plugin.records

    def test_plugin_module_imports_no_jax(self) -> None:
        """So that `axcore --help` stays fast with the plugin installed."""
        module = plugin_host().plugin(self.plugin).candidate.module
        program = f"import sys, {module}; sys.exit('jax' in sys.modules)"
        ran = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            env={**_environment(), "PYTHONPATH": _search_path()},
        )
        assert ran.returncode == 0, f"importing {module} imports jax"

    def test_every_reference_leads_somewhere(self, record: Record) -> None:
        """References are resolved when they are used; here all are."""
        for field in attrs.fields(type(record)):
            value = getattr(record, field.name)
            if isinstance(value, Ref):
                assert value.resolve() is not None

    def test_record_is_what_its_kind_asks_for(self, record: Record) -> None:
        """As axcore will use it."""
        for kind, check in _CHECKS.items():
            if isinstance(record, kind):
                check(record)

    def test_summary_is_one_line(self, record: Record) -> None:
        """As lists show it."""
        summary = getattr(record, "summary", "one line")
        assert summary.strip() == summary
        assert len(summary.splitlines()) == 1


def _check_command(record: Command) -> None:
    assert isinstance(record.fn.resolve(), click.Command)


def _check_doctor(record: DoctorCheck) -> None:
    found = list(record.fn.resolve()())
    assert found
    assert all(isinstance(one, Finding) for one in found)


def _check_family(record: HardwareFamily) -> None:
    detect = record.detect.resolve()
    assert detect("no-such-platform", "No Such Chip") is None
    families = [record]
    for host in record.hosts:
        assert parse_target(host.name, families) == host
    if record.present is not None:
        assert record.present.resolve()({}) in (True, False)


def _check_kernel(record: Kernel) -> None:
    hosts = [host for family in plugin_host().records(HardwareFamily) for host in family.hosts]
    reasons = {host.name: record.unsupported_hardware_reason(host) for host in hosts}
    assert None in reasons.values(), f"serves no hardware that is known: {reasons}"
    assert callable(record.forward.resolve())
    assert record.backward is None or callable(record.backward.resolve())


def _check_variant(record: LayerVariant) -> None:
    from axcore.experiments.tiny import tiny

    for part in record.parts():
        replaced = part.replaces.resolve()
        make = part.config.resolve()
        found = find_config(tiny(), replaced)
        made = make() if isclass(make) else make(found[0].node if found else replaced.Config())
        assert is_config(made)


def _check_modifier(record: Modifier) -> None:
    modifier = record.config.resolve()()
    assert is_config(modifier)
    assert callable(modifier.apply)


def _check_storage(record: CheckpointStorage) -> None:
    assert callable(record.fn.resolve())


def _check_writer(record: MetricWriter) -> None:
    assert callable(record.fn.resolve())


def _check_launcher(record: JobLauncher) -> None:
    from axcore.launch.job import launcher_class

    launcher_class(record)
    assert record.process_info is None or record.process_info.resolve()({}) is None


def _check_observer(record: RunObserver) -> None:
    first, second = (record.fn.resolve()() for _ in range(2))
    assert callable(first)
    assert first is not second, "runs would share an observer"


def _check_source(record: DataSource) -> None:
    from axcore.data import Source

    assert issubclass(record.config.resolve(), Source.Config)


def _check_tokenizer(record: DataTokenizer) -> None:
    from axcore.data import Tokenizer

    assert issubclass(record.config.resolve(), Tokenizer.Config)


def _check_transform(record: DataTransform) -> None:
    from axcore.data import Transform

    assert issubclass(record.config.resolve(), Transform.Config)


def _check_reward(record: RewardFunction) -> None:
    from axcore.rewards import Reward

    assert issubclass(record.config.resolve(), Reward.Config)


def _check_environment(record: RolloutEnvironment) -> None:
    from axcore.environments import Environment

    assert issubclass(record.config.resolve(), Environment.Config)


def _check_task(record: TrainingTask) -> None:
    from axcore.module import Module

    assert issubclass(record.config.resolve(), Module.Config)


def _check_flags(record: EnvironmentFlags) -> None:
    hosts = [host for family in plugin_host().records(HardwareFamily) for host in family.hosts]
    meant = [host for host in hosts if record.requires(host) is None]
    assert meant, "is meant for no hardware that is known"
    for host in meant:
        assert wanted_flags(host, [record])


_CHECKS: dict[type[Record], Callable[[Any], None]] = {
    CheckpointStorage: _check_storage,
    Command: _check_command,
    DataSource: _check_source,
    DataTokenizer: _check_tokenizer,
    DataTransform: _check_transform,
    DoctorCheck: _check_doctor,
    EnvironmentFlags: _check_flags,
    HardwareFamily: _check_family,
    Kernel: _check_kernel,
    JobLauncher: _check_launcher,
    LayerVariant: _check_variant,
    MetricWriter: _check_writer,
    Modifier: _check_modifier,
    RewardFunction: _check_reward,
    RolloutEnvironment: _check_environment,
    RunObserver: _check_observer,
    TrainingTask: _check_task,
}


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def _search_path() -> str:
    import os

    return os.pathsep.join(path for path in sys.path if path)
