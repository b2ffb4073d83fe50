"""`MeshRuleSuite`: a mesh rule fits the hardware it names, and leaves the numbers alone."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import pytest

from axcore.config import diff_config, evolve
from axcore.modifiers import apply_modifier
from axcore.plugins import Hardware, HardwareFamily, MeshRule, plugin_host
from axcore.registration import Record
from axcore.testing.suite import Suite

LAYOUT = (
    "mesh*",
    "sharding.*_rules*",
    "kernels.*",
    "num_micro_batches",
    "**remat*",
)
"""Paths of a trainer's config that change layout, kernels and memory use, and no number."""


class MeshRuleSuite(Suite):
    """Proves mesh rules: `class TestMeshRules(MeshRuleSuite): plugin = "axl-acme"`.

    Attributes:
        num_hosts: How many hosts a rule must fit, wherever it matches.
        layout: Globs of the paths that a rule's modifiers may change.
    """

    kind: ClassVar[type[Record]] = MeshRule
    num_hosts: ClassVar[tuple[int, ...]] = (1, 2, 32)
    layout: ClassVar[tuple[str, ...]] = LAYOUT

    def subject(self, folder: Path) -> Any:
        """Return the config that rules are applied to: a small experiment."""
        from axcore.testing.tiny import small_experiment

        return small_experiment(folder)

    def machines(self, rule: MeshRule) -> Iterator[Hardware]:
        """Yield the hardware that a rule matches, of every size to test."""
        for family in plugin_host().records(HardwareFamily):
            for host in family.hosts:
                for count in self.num_hosts:
                    chips = host.chips_per_host * count
                    machine = host.resized(chips, chips if family.is_one_host else None)
                    if rule.matches(machine):
                        yield machine

    def test_rule_matches_hardware_that_is_known(self, record: MeshRule) -> None:
        """A misspelt pattern would never be used."""
        names = [host.name for f in plugin_host().records(HardwareFamily) for host in f.hosts]
        assert list(self.machines(record)), f"{record.match} matches none of {names}"

    def test_mesh_fits_every_number_of_hosts(self, record: MeshRule) -> None:
        """One full host, and many."""
        from axcore.parallel import mesh_sizes

        for machine in self.machines(record):
            mesh_sizes(record.mesh, machine.num_devices)

    def test_modifiers_change_layout_and_no_number(self, record: MeshRule, tmp_path: Path) -> None:
        """What changes numbers is written by name in an experiment's own rules."""
        before = self.subject(tmp_path)
        for machine in self.machines(record):
            after = evolve(before, mesh=record.mesh)
            for modifier in record.modifiers:
                after = apply_modifier(after, modifier, machine, where=record.key)
            paths = [change.path for change in diff_config(before, after)]
            wrong = [path for path in paths if not self._is_layout(path)]
            assert not wrong, f"{record.key} changes {wrong} on {machine.name}"

    def test_rule_is_chosen_for_what_it_matches(self, record: MeshRule) -> None:
        """Some hardware has no more specific rule; otherwise the rule would never be used."""
        from axcore.plugins import find_mesh_rule

        brought = plugin_host().records(MeshRule)
        chosen = [find_mesh_rule(machine, brought=brought) for machine in self.machines(record)]
        if record not in chosen:
            pytest.fail(f"{record.match} is never chosen: {sorted({r.match for r in chosen})} are")

    def _is_layout(self, path: str) -> bool:
        return any(fnmatchcase(path, glob) for glob in self.layout)
