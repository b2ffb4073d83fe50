"""A config for some hardware: the mesh rule that matches, and what its modifiers change."""

from typing import Any

from axcore.config import diff_config, evolve, format_diff
from axcore.plugins import (
    Hardware,
    HardwareFamily,
    MeshRule,
    apply_modifier,
    check_rules,
    find_mesh_rule,
    plugin_host,
)


def for_hardware(cfg: Any, hardware: Hardware) -> tuple[Any, str]:
    """Returns a trainer's config for some hardware, and what changed, as a diff.

    A mesh that the config sets itself stays. Otherwise the first matching rule of the config, or
    the most specific one that plugins bring, gives the mesh and the modifiers.

    Raises:
        PluginError: No rule matches, or one of the config's own can match nothing.
        ConfigError: A modifier changes nothing.
    """
    if cfg.mesh is not None:
        return cfg, ""
    check_rules(cfg.mesh_rules, plugin_host().records(HardwareFamily))
    rule = find_mesh_rule(hardware, own=cfg.mesh_rules, brought=plugin_host().records(MeshRule))
    result = evolve(cfg, mesh=rule.mesh, slices=cfg.slices or rule.slices)
    for modifier in rule.modifiers:
        result = apply_modifier(result, modifier, hardware, where=f"mesh rule {rule.match!r}")
    return result, format_diff(diff_config(cfg, result))
