"""`ModifierSuite`: a modifier is pure, does something, and leaves a config that can be saved."""

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.config import diff_config, format_diff, from_json, to_json
from axcore.errors import AxcoreError
from axcore.modifiers import apply_modifier
from axcore.plugins import Hardware, Modifier
from axcore.registration import Record
from axcore.testing.suite import Suite


class ModifierSuite(Suite):
    """Proves modifiers: `class TestModifiers(ModifierSuite): plugin = "axl-acme"`.

    Attributes:
        target: Name of the hardware that modifiers get.
        values: Fields to set, by the key of a modifier that does nothing with its defaults.
        repeats: Keys of modifiers that do more where they are applied again, and are meant to.
    """

    kind: ClassVar[type[Record]] = Modifier
    target: ClassVar[str] = "cpu-8"
    values: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    repeats: ClassVar[tuple[str, ...]] = ()

    def make(self, record: Modifier) -> Any:
        """Return the modifier to prove."""
        return record.config.resolve()(**self.values.get(record.key, {}))

    def subject(self, folder: Path) -> Any:
        """Return the config to modify: a small experiment, where not overridden."""
        from axcore.testing.tiny import small_experiment

        return small_experiment(folder)

    @pytest.fixture
    def subject_config(self, tmp_path: Path) -> Any:
        """The config to modify."""
        return self.subject(tmp_path)

    def test_modifier_changes_something(self, record: Modifier, subject_config: Any) -> None:
        """Unless it says that it may change nothing, by `is_idempotent`."""
        modifier = self.make(record)
        apply_modifier(subject_config, modifier, Hardware.parse(self.target), where=record.key)

    def test_modifier_is_pure(self, record: Modifier, subject_config: Any) -> None:
        """The same config and hardware give the same result, and both stay what they were."""
        modifier = self.make(record)
        before = to_json(subject_config)
        first = modifier.apply(subject_config, Hardware.parse(self.target))
        second = modifier.apply(subject_config, Hardware.parse(self.target))
        assert first == second, f"{record.key} gives another config the second time"
        assert to_json(subject_config) == before, f"{record.key} changes the config it is given"

    def test_applied_twice_it_does_the_same_as_once_or_refuses(
        self, record: Modifier, subject_config: Any
    ) -> None:
        """A mesh rule and a user may both ask for it; `repeats` names what is meant to add up."""
        if record.key in self.repeats:
            pytest.skip(f"{record.key} is in `repeats`")
        modifier, hardware = self.make(record), Hardware.parse(self.target)
        once = modifier.apply(subject_config, hardware)
        try:
            twice = modifier.apply(once, hardware)
        except AxcoreError:
            return
        assert not diff_config(once, twice), (
            f"{record.key} applied twice: {format_diff(diff_config(once, twice))}; return the "
            "config as it is, or raise a ConfigError, where the change is made already"
        )

    def test_nothing_but_config_and_hardware_decides(
        self, record: Modifier, subject_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither variables of the environment, nor the folder, the time or chance.

        A run that is resumed, or started on many hosts, would train another model.
        """
        modifier, hardware = self.make(record), Hardware.parse(self.target)
        expected = modifier.apply(subject_config, hardware)  # imports what it needs
        read: list[str] = []
        variables, get = type(os.environ), type(os.environ).__getitem__

        def noting(environment: Any, name: str) -> str:
            read.append(name)
            return str(get(environment, name))

        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(tmp_path)
            elsewhere.setattr(time, "time", lambda: 1e9)
            random.seed(1)
            elsewhere.setattr(variables, "__getitem__", noting)
            got = modifier.apply(subject_config, hardware)
        assert not read, f"{record.key} reads ${', $'.join(dict.fromkeys(read))}; make it a field"
        difference = format_diff(diff_config(expected, got))
        assert got == expected, f"elsewhere, and at another time, {record.key} gives {difference}"

    def test_modifier_is_saved_and_read_back(self, record: Modifier) -> None:
        """A mesh rule holds it, and is saved with its experiment."""
        modifier = self.make(record)
        assert from_json(to_json(modifier)) == modifier

    def test_modifier_asks_no_device(
        self, record: Modifier, subject_config: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It gets the hardware, so that configs can be made for machines not at hand."""
        import jax

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("a modifier asked jax for devices; it gets them as `hardware`")

        for name in ("devices", "local_devices", "device_count", "default_backend"):
            monkeypatch.setattr(jax, name, refuse)
        self.make(record).apply(subject_config, Hardware.parse(self.target))

    def test_modified_config_is_saved_and_read_back(
        self, record: Modifier, subject_config: Any
    ) -> None:
        """A run directory contains it."""
        changed = self.make(record).apply(subject_config, Hardware.parse(self.target))
        assert type(changed) is type(subject_config), f"{record.key} returns a {type(changed)}"
        assert from_json(to_json(changed)) == changed
