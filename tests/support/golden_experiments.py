"""The experiments of a plugin as text files: as they are, and laid out for some hardware.

Rules of an experiment name hardware by its name, so that no plugin for the hardware is needed.
"""

from pathlib import Path

from axcore.config import check_golden
from axcore.plugins import Experiment, Hardware, plugin_host
from axcore.trainer import resolve


class Goldens:
    """The golden texts of a plugin's experiments, in the folder `goldens` next to a test."""

    def __init__(self, plugin: str, test: str, targets: tuple[str, ...]) -> None:
        records = plugin_host().records(Experiment)
        self._experiments = {one.name: one.fn for one in records if one.plugin == plugin}
        self.folder = Path(test).with_name("goldens")
        self.cases = [(name, one) for name in sorted(self._experiments) for one in (None, *targets)]

    def path(self, name: str, target: str | None) -> Path:
        return self.folder / (target or "") / f"{name}.txt"

    def check(self, name: str, target: str | None, *, update: bool = False) -> None:
        cfg = self._experiments[name].resolve()()
        cfg = resolve(cfg, Hardware.parse(target)).config if target else cfg
        check_golden(cfg, self.path(name, target), update=update)

    def write(self) -> None:
        for case in self.cases:
            self.check(*case, update=True)

    def assert_none_is_left(self) -> None:
        assert {*self.folder.rglob("*.txt")} == {self.path(*case) for case in self.cases}
