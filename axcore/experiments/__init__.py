"""Experiments: named, complete training configs, and what those of plugins begin with."""

from axcore.experiments.pretraining import llama2_7b, mesh_rules
from axcore.experiments.tiny import tiny

__all__ = ["llama2_7b", "mesh_rules", "tiny"]
