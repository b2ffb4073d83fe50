"""What suites have in common: the plugin they are about, and the records they go through."""

from typing import Any, ClassVar

import pytest

from axcore.errors import PluginError
from axcore.plugins import Record, plugin_host


class Suite:
    """A class of tests to inherit: `class TestKernels(KernelSuite): plugin = "axl-acme"`.

    Every test that has a parameter `record` runs once for each record of the plugin.

    Attributes:
        plugin: The plugin's name.
        keys: Keys of the records to test, as `axcore plugins -v` shows them; None for all.
        kind: Which records the suite is about.
    """

    plugin: ClassVar[str]
    keys: ClassVar[tuple[str, ...] | None] = None
    kind: ClassVar[type[Record]] = Record

    @classmethod
    def records(cls) -> tuple[Any, ...]:
        """Return the records to test.

        Raises:
            PluginError: There is none, so that the suite would prove nothing.
        """
        plugin = plugin_host().plugin(cls.plugin)
        if plugin.error is not None:
            raise plugin.error
        found = [record for record in plugin.records if isinstance(record, cls.kind)]
        wanted = found if cls.keys is None else [one for one in found if one.key in cls.keys]
        missing = set(cls.keys or ()) - {record.key for record in wanted}
        if missing or not wanted:
            what = (
                f"{cls.kind.kind} {sorted(missing)}" if missing else f"{cls.kind.__name__} at all"
            )
            raise PluginError(
                f"plugin {cls.plugin!r} brings no {what}",
                where=cls.__qualname__,
                hint="correct `plugin` and `keys`, or leave the suite out",
            )
        return tuple(wanted)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each record."""
        if "record" in metafunc.fixturenames:
            records = self.records()
            metafunc.parametrize("record", records, ids=[record.key for record in records])
