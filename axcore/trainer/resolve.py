"""`resolve`: a trainer's config for some hardware, settled once, before anything is built.

Changes are made in one order, the user's own last, so that no mesh rule undoes them: the model of a
base to train further, layer variants and data by name, the mesh rule, modifiers by name, overrides.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs

from axcore.config import Change, Origin, apply_overrides, diff_config, evolve, format_diff
from axcore.config.define import setting_from
from axcore.config.render import format_value
from axcore.errors import ConfigError, PluginError
from axcore.modifiers import apply_modifier, find_change, with_changes
from axcore.plugins import (
    Hardware,
    HardwareFamily,
    MeshRule,
    Modifier,
    check_mesh_rules,
    find_mesh_rule,
    plugin_host,
)
from axcore.registration import note_owner

_MESH_RULE = "mesh rule"


class ResolvedChange(NamedTuple):
    """One difference that a step of resolving made.

    Args:
        change: The path, and its value before and after.
        origin: The step: a mesh rule with its plugin, or a flag of the command line.
    """

    change: Change
    origin: str


@attrs.frozen(kw_only=True)
class ResolvedConfig:
    """A trainer's config with nothing left to decide. A `Trainer` takes nothing else.

    Args:
        config: The config; it has a mesh.
        hardware: What it is for.
        changes: What resolving changed, in the order in which it did.
    """

    config: Any
    hardware: Hardware
    changes: tuple[ResolvedChange, ...] = ()

    def mesh_rule_diff(self) -> str:
        """Return what the mesh rule changed, as a diff."""
        return format_diff(tuple(one.change for one in self._of_mesh_rule()))

    def mesh_rule_changes(self) -> str:
        """Return a line of whose mesh rule it is and of the mesh, and a diff of other changes."""
        found = self._of_mesh_rule()
        if not found:
            return ""
        mesh = [format_value(one.change.after) for one in found if one.change.path == "mesh"]
        rest = format_diff(tuple(one.change for one in found if one.change.path != "mesh"))
        what = ", ".join([f"mesh {one}" for one in mesh] + ["and"] * bool(rest))
        return f"by {found[0].origin}: {what}\n{rest}"

    def origin_of(self, *paths: str) -> str | None:
        """Return which step of resolving set a field last; None where the config has it itself."""
        found = [one.origin for one in self.changes if one.change.path in paths]
        return found[-1] if found else None

    def _of_mesh_rule(self) -> list[ResolvedChange]:
        return [one for one in self.changes if one.origin.startswith(_MESH_RULE)]


def resolve(
    cfg: Any,
    hardware: Hardware,
    *,
    modify: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> ResolvedConfig:
    """Return a trainer's config for some hardware, and what changed. Starts no device.

    A mesh that the config sets itself stays. Otherwise the first matching rule of the config, or
    the most specific one that plugins bring, gives the mesh and the modifiers.

    Args:
        cfg: The trainer's config.
        hardware: What to resolve it for.
        modify: `NAME` or `NAME(FIELD=VALUE)` of named changes, as `--modify` takes them.
        overrides: `PATH=VALUE` texts, as `--set` takes them.

    Raises:
        PluginError: No rule matches, or one of the config's own can match nothing; or there is no
            change of a name.
        ConfigError: A modifier changes nothing, or a change does not fit.
    """
    changes: list[ResolvedChange] = []

    def step(cfg: Any, origin: str, change: Callable[[Any], Any]) -> Any:
        # Each field remembers which step set it, for errors
        # and for whoever asks where a value is from.
        with setting_from(Origin(origin)):
            after = change(cfg)
        changes.extend(ResolvedChange(one, origin) for one in diff_config(cfg, after))
        return after

    def by_name(cfg: Any, names: Sequence[str]) -> Any:
        for name in names:
            change = lambda cfg, name=name: with_changes(cfg, (name,), hardware)  # noqa: E731
            cfg = step(cfg, f"--modify {name}", change)
        return cfg

    modifiers, variants = _split_modifiers(modify)
    # The base model first: variants and rules change what is there.
    result = step(cfg, "init_from", lambda cfg: with_base_model(cfg, overrides))
    result = by_name(result, variants)
    # A rule is asked for only where the command line does
    # not name the mesh: it may not exist for this hardware.
    rule = _mesh_rule(result, hardware, is_needed=not _sets_mesh(overrides))
    if rule is not None:
        origin = f"{_MESH_RULE} {rule.match!r} of {rule.plugin or 'the experiment'}"
        result = step(result, origin, lambda cfg: _apply_rule(cfg, rule, hardware))
    # Modifiers after the mesh rule, since some depend on
    # the mesh; `--set` last, as the user has the last word.
    result = by_name(result, modifiers)
    result = step(result, "--set", lambda cfg: apply_overrides(cfg, overrides))
    return ResolvedConfig(config=result, hardware=hardware, changes=tuple(changes))


def with_base_model(cfg: Any, overrides: Sequence[str] = ()) -> Any:
    """Return a trainer's config with what its source of initial weights decides, if it does any.

    Args:
        cfg: The trainer's config.
        overrides: `PATH=VALUE` texts, of which those for `init_from` say where the source is.

    Raises:
        ConfigError: A change does not fit.
        CheckpointError: The source cannot be read.
    """
    if cfg.init_from is None:
        return cfg
    # Where the source is must be known before it can say
    # what the model is; all other overrides come last.
    named = [text for text in overrides if text.strip().startswith("init_from.")]
    cfg = apply_overrides(cfg, named)
    return cfg.init_from.completed(cfg)


def check_is_resolved(resolved: Any) -> None:
    """Check what a trainer is made of.

    Raises:
        ConfigError: It is not a resolved config.
    """
    if not isinstance(resolved, ResolvedConfig):
        raise ConfigError(
            f"a Trainer takes a ResolvedConfig, not a {type(resolved).__qualname__}",
            hint="cfg.build() resolves it for the hardware at hand; "
            "Trainer(resolve(cfg, hardware), devices=...) for other devices",
        )


def _split_modifiers(modify: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the named changes that are modifiers, and the others, which are made first."""
    modifiers = [one for one in modify if isinstance(find_change(one), Modifier)]
    return modifiers, [one for one in modify if one not in modifiers]


def _mesh_rule(cfg: Any, hardware: Hardware, *, is_needed: bool) -> MeshRule | None:
    """Return the rule that gives a config its mesh; a user who sets one needs no rule."""
    if cfg.mesh is not None:
        return None
    check_mesh_rules(cfg.mesh_rules, plugin_host().records(HardwareFamily))
    try:
        return find_mesh_rule(hardware, own=cfg.mesh_rules, brought=plugin_host().records(MeshRule))
    except PluginError:
        if is_needed:
            raise
        return None


def _apply_rule(cfg: Any, rule: MeshRule, hardware: Hardware) -> Any:
    over_slices = {"data": hardware.slices} if hardware.slices > 1 else {}
    cfg = evolve(cfg, mesh=rule.mesh, slices=cfg.slices or rule.slices or over_slices)
    for modifier in rule.modifiers:
        try:
            cfg = apply_modifier(cfg, modifier, hardware, where=f"{_MESH_RULE} {rule.match!r}")
        except Exception as error:
            where = f"{_MESH_RULE} {rule.match!r} of plugin {rule.plugin!r}"
            note_owner(error, where, rule.plugin)
            raise
    return cfg


def _sets_mesh(overrides: Sequence[str]) -> bool:
    return any(text.partition("=")[0].strip() == "mesh" for text in overrides)
