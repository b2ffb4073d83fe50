"""Hardware as a value: families, targets by name, predicates and mesh rules. Imports no jax."""

from axcore.hardware.families import HardwareFamily
from axcore.hardware.hardware import Hardware, requires
from axcore.hardware.mesh_rules import MeshRule, check_mesh_rules, find_mesh_rule

__all__ = [
    "Hardware",
    "HardwareFamily",
    "MeshRule",
    "check_mesh_rules",
    "find_mesh_rule",
    "requires",
]
