"""Hardware as a value: families, targets by name, predicates and mesh rules. Imports no jax."""

from axcore.hardware.families import HardwareFamily
from axcore.hardware.hardware import Hardware
from axcore.hardware.mesh_rules import MeshRule, check_mesh_rules, find_mesh_rule
from axcore.hardware.predicates import requires

__all__ = [
    "Hardware",
    "HardwareFamily",
    "MeshRule",
    "check_mesh_rules",
    "find_mesh_rule",
    "requires",
]
