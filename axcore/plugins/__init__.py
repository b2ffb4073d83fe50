"""Records, hooks and the plugin host: all that a plugin needs. Imports no jax."""

import types
import typing

from axcore.hardware.hardware import Hardware as Hardware
from axcore.hardware.hardware import requires as requires
from axcore.hardware.mesh_rules import check_mesh_rules as check_mesh_rules
from axcore.hardware.mesh_rules import find_mesh_rule as find_mesh_rule
from axcore.plugins.discovery import Plugin as Plugin
from axcore.plugins.flags import set_environment_flags as set_environment_flags
from axcore.plugins.flags import wanted_compiler_options as wanted_compiler_options
from axcore.plugins.flags import wanted_flags as wanted_flags
from axcore.plugins.host import PluginHost as PluginHost
from axcore.plugins.host import attributed as attributed
from axcore.plugins.host import load_host as load_host
from axcore.plugins.host import of_plugin as of_plugin
from axcore.plugins.host import plugin_host as plugin_host
from axcore.plugins.host import wrong_method_return as wrong_method_return
from axcore.plugins.records import *  # noqa: F403
from axcore.plugins.records.runs import Finding as Finding
from axcore.plugins.records.runs import Fix as Fix
from axcore.registration import Record as Record
from axcore.registration import Ref as Ref

if not typing.TYPE_CHECKING:  # a list would hide from type checkers what the star brings
    __all__ = [
        name
        for name, value in vars().items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ]
