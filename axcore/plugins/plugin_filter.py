"""Which plugins the environment lets in, by `AXCORE_PLUGINS` and `AXCORE_BLOCK`."""

from collections.abc import Iterable, Mapping

import attrs

from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.registration.returns import CORE

ALLOW = "AXCORE_PLUGINS"
BLOCK = "AXCORE_BLOCK"


@attrs.frozen(kw_only=True)
class PluginFilter:
    """Which plugins the environment lets in.

    Args:
        allow: Names that may load; None lets all.
        block: Names that may not.
    """

    allow: frozenset[str] | None = None
    block: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "PluginFilter":
        """Read `AXCORE_PLUGINS` and `AXCORE_BLOCK`: names, with commas between them."""
        allow = _names(environment.get(ALLOW, ""))
        return cls(allow=allow or None, block=_names(environment.get(BLOCK, "")))

    def exclusion_reason(self, name: str) -> str | None:
        """Return None where the plugin may load, else which variable keeps it out."""
        if name in self.block:
            return f"{BLOCK} names it"
        if self.allow is not None and name not in self.allow:
            return f"{ALLOW} does not name it"
        return None

    def problem(self, installed: Iterable[str]) -> PluginError | None:
        """Return the error of names that are not installed, or of blocking the core, or None."""
        installed = sorted(set(installed))
        if CORE in self.block:
            return PluginError(
                f"{BLOCK} names {CORE!r}, which cannot be blocked",
                where=f"environment variable {BLOCK}",
                hint=f"remove {CORE} from {BLOCK}",
            )
        for variable, names in (
            (ALLOW, (self.allow or frozenset()) - {CORE}),
            (BLOCK, self.block),
        ):
            for name in sorted(names.difference(installed)):
                return _not_installed(variable, name, installed)
        return None


def _not_installed(variable: str, name: str, installed: list[str]) -> PluginError:

    return PluginError(
        f"{variable} names {name!r}, and no such plugin is installed; "
        f"{suggest_names(name, installed)}",
        where=f"environment variable {variable}",
        hint=f"correct {variable}, or install {name}",
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))
