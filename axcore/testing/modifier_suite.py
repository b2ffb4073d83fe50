"""`ModifierSuite`: a modifier is pure, does something, and leaves a config that can be saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.config import from_json, to_json
from axcore.modifiers import apply_modifier
from axcore.plugins import Hardware, Modifier
from axcore.registration.record import Record
from axcore.testing.suite import Suite


class ModifierSuite(Suite):
    """Proves modifiers: `class TestModifiers(ModifierSuite): plugin = "axl-acme"`.

    Attributes:
        target: Name of the hardware that modifiers get.
        values: Fields to set, by the key of a modifier that does nothing with its defaults.
    """

    kind: ClassVar[type[Record]] = Modifier
    target: ClassVar[str] = "cpu-8"
    values: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def make(self, record: Modifier) -> Any:
        """Returns the modifier to prove."""
        return record.config.resolve()(**self.values.get(record.key, {}))

    def subject(self, folder: Path) -> Any:
        """Returns the config to modify: a small experiment, where not overridden."""
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
        assert first == second
        assert to_json(subject_config) == before

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
        """A run directory holds it."""
        changed = self.make(record).apply(subject_config, Hardware.parse(self.target))
        assert type(changed) is type(subject_config)
        assert from_json(to_json(changed)) == changed
