"""Experiments: named, complete training configs, and what those of plugins begin with."""

from axcore.experiments.llama2 import llama2_7b
from axcore.experiments.mesh_rules import mesh_rules
from axcore.experiments.tiny import tiny

__all__ = ["llama2_7b", "mesh_rules", "tiny"]
