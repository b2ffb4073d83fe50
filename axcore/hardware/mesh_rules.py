"""`MeshRule`: what a config becomes on some hardware, and the choice among rules."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from axcore.config import config, suggest_names
from axcore.errors import PluginError
from axcore.hardware.families import HardwareFamily
from axcore.hardware.hardware import Hardware
from axcore.registration import Record, record


@record(hook="mesh_rules")
@config
class MeshRule(Record):
    """A mesh, and modifiers applied in order, for hardware whose name matches.

    A config value: it can be in a config tree and is saved with it. A rule that a plugin brings
    is for experiments that have none of their own; it changes layout, flags, kernels and memory
    use only, never the numbers.

    Args:
        match: Target name with `*`, as "acme-x1-*".
        mesh: Size by mesh axis within a slice; one may be -1 and takes the devices that are left.
        slices: Number of slices by mesh axis, where the hardware is several slices; `data` has them
            where left out.
        modifiers: Configs with a pure `apply(cfg, hardware) -> cfg`, or the text of changes as
            `--modify` accepts it.

    Example:
        @hook.mesh_rules
        def mesh_rules():
            yield MeshRule(match="acme-*", mesh={"fsdp": -1})
    """

    kind: ClassVar[str] = "mesh rule"
    key_fields: ClassVar[tuple[str, ...]] = ("match",)

    match: str
    mesh: Mapping[str, int]
    slices: Mapping[str, int] = {}
    modifiers: tuple[Any, ...] = ()

    def matches(self, hardware: Hardware) -> bool:
        """Whether the rule is meant for `hardware`."""
        return fnmatchcase(hardware.name, self.match)

    @property
    def specificity(self) -> int:
        """How much of a name the pattern pins down: its letters that are not wildcard."""
        return sum(sign not in "*?" for sign in self.match)


def find_mesh_rule(
    hardware: Hardware, *, own: Sequence[MeshRule] = (), brought: Iterable[MeshRule] = ()
) -> MeshRule:
    """Return the rule for `hardware`: the first of `own`, else the most specific one `brought`.

    Args:
        hardware: What to find a rule for.
        own: The experiment's rules, in order.
        brought: Those of plugins, in any order.

    Raises:
        PluginError: No rule matches, or two that plugins brought match equally specifically.
    """
    for rule in own:
        if rule.matches(hardware):
            return rule
    candidates = sorted(brought, key=lambda rule: (-rule.specificity, rule.match, rule.plugin))
    fitting = [rule for rule in candidates if rule.matches(hardware)]
    if not fitting:
        raise _no_match(hardware, own, candidates)
    best = [rule for rule in fitting if rule.specificity == fitting[0].specificity]
    if len(best) > 1:
        raise PluginError(
            f"mesh rules {' and '.join(map(_shown, best))} match {hardware.name} equally well",
            where=f"target {hardware.name}",
            hint=f"write a rule of the experiment's own, MeshRule(match={hardware.name!r}, ...), "
            f"or set AXCORE_BLOCK={best[-1].plugin}",
        )
    return best[0]


def check_mesh_rules(rules: Iterable[MeshRule], families: Iterable[HardwareFamily]) -> None:
    """Check that each rule that begins with a family's name can match hardware of it.

    Rules for families that no installed plugin describes are left alone.

    Raises:
        PluginError: A rule matches nothing.
    """
    stems: dict[str, list[str]] = {}
    for family in families:
        stems[family.name] = [host.name.rpartition("-")[0] + "-" for host in family.hosts]
    for rule in rules:
        fixed = re.split(r"[*?[]", rule.match)[0]
        known = stems.get(fixed.split("-")[0], [fixed])
        if not any(fixed.startswith(stem) or stem.startswith(fixed) for stem in known):
            raise PluginError(
                f"mesh rule {rule.match!r} matches nothing; "
                + suggest_names(rule.match, [f"{stem}*" for stem in known]),
                where=f"mesh rule {rule.match!r}",
                hint="correct the rule, or take it out",
            )


def _no_match(
    hardware: Hardware, own: Sequence[MeshRule], brought: Sequence[MeshRule]
) -> PluginError:
    tried = ", ".join(map(_shown, (*own, *brought))) or "(there are no rules)"
    return PluginError(
        f"no mesh rule matches {hardware.name}; tried, in order: {tried}",
        where=f"target {hardware.name}",
        hint="--set \"mesh={'fsdp': -1}\", or add "
        f"MeshRule(match={hardware.name!r}, mesh={{'fsdp': -1}}) to the experiment's rules, "
        f"or install the plugin for {hardware.family}",
    )


def _shown(rule: MeshRule) -> str:
    return f"{rule.match} ({rule.plugin or 'the experiment'})"
