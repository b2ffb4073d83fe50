"""Environments: what answers a policy between its turns, in processes with time limits. No jax."""

from axcore.environments.builtin import PythonEnvironment, ToolCalls
from axcore.environments.environment import Environment, Reply, ToolCall, Turn
from axcore.environments.pool import EnvironmentPool, TurnRequest

__all__ = [
    "Environment",
    "EnvironmentPool",
    "PythonEnvironment",
    "Reply",
    "ToolCall",
    "ToolCalls",
    "Turn",
    "TurnRequest",
]
