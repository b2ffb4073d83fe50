"""`Ref`: the name of something in a module, imported when it is used and never before."""

import importlib
import re
from typing import Any

import attrs

from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.registration.returns import CORE

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _well_formed(ref: "Ref", attribute: Any, value: Any) -> None:
    if not isinstance(value, str) or not _TARGET.fullmatch(value):
        raise PluginError(
            f"Ref target is {value!r}; expected 'package.module:name'",
            hint="write the module, a colon, and the name in it, as Ref('axl_acme.flash:forward')",
        )


@attrs.frozen
class Ref:
    """A lazy reference, as `Ref("axl_acme.flash:forward")`.

    Args:
        target: Module, colon, and the dotted name in that module.
        plugin: Who brought the reference; the host stamps it. No part of equality.
    """

    target: str = attrs.field(validator=_well_formed)
    plugin: str = attrs.field(default="", eq=False, kw_only=True, repr=False)

    def resolve(self) -> Any:
        """Imports the module and returns what the reference names.

        An exception that the module itself raises while it is imported keeps its type and gains a
        note; only a reference that leads nowhere is an error of ours.

        Raises:
            PluginError: The module or the name does not exist, or the module lacks a dependency.
        """
        module_name, _, path = self.target.partition(":")
        value = self._import(module_name)
        for step in path.split("."):
            try:
                value = getattr(value, step)
            except AttributeError:
                raise self._nothing_there(value, step) from None
        return value

    def _import(self, module_name: str) -> Any:
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or module_name
            if module_name == missing or module_name.startswith(missing + "."):
                raise PluginError(
                    f"{self._owner()} refers to {self.target!r}, but there is no module "
                    f"{missing!r}",
                    where=self.target,
                    hint=f"correct the Ref, or install what brings {missing}",
                ) from None
            raise PluginError(
                f"{self._owner()} refers to {self.target!r}, whose module needs {missing!r}, "
                "and that is not installed",
                where=self.target,
                hint=f"install {missing}",
            ) from error
        except Exception as error:
            blocks = f"; set AXCORE_BLOCK={self.plugin} to run without it"
            error.add_note(
                f"while resolving {self.target!r} of {self._owner()}"
                f"{'' if self.plugin in ('', CORE) else blocks}"
            )
            raise

    def _nothing_there(self, holder: Any, step: str) -> PluginError:
        there = [name for name in vars(holder) if not name.startswith("_")]
        return PluginError(
            f"{self._owner()} refers to {self.target!r}, but there is no {step!r} in "
            f"{getattr(holder, '__name__', holder)!s}; {suggest_names(step, there)}",
            where=self.target,
            hint="correct the Ref",
        )

    def _owner(self) -> str:
        return f"plugin {self.plugin!r}" if self.plugin else "a Ref"
