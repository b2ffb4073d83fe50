"""`on(...)`: a predicate on hardware that is itself a value, so records compare and hash."""

from collections.abc import Iterable

import attrs

from axcore.errors import PluginError
from axcore.plugins.hardware import Hardware


@attrs.frozen(kw_only=True)
class On:
    """A predicate made by `on`: calling it gives None for yes, or the reason why not."""

    families: frozenset[str] = frozenset()
    generations: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()

    def __call__(self, hardware: Hardware) -> str | None:
        """Returns None where `hardware` is meant, else the reason why it is not."""
        if self.families and hardware.family not in self.families:
            return f"wants family {_either(self.families)}, not {hardware.name}"
        if self.generations and hardware.generation not in self.generations:
            return f"wants generation {_either(self.generations)}, not {hardware.name}"
        missing = self.features - hardware.features
        if missing:
            return f"wants {', '.join(sorted(missing))}, which {hardware.name} does not have"
        return None

    def __str__(self) -> str:
        parts = [_either(self.families)] if self.families else []
        if self.generations:
            parts.append(_either(self.generations))
        if self.features:
            parts.append("with " + ", ".join(sorted(self.features)))
        return " ".join(parts) or "any"


def on(
    *,
    family: str | Iterable[str] = (),
    generation: str | Iterable[str] = (),
    features: str | Iterable[str] = (),
) -> On:
    """Returns a predicate: of one of these families, one of these generations, with all features.

    What is left out is not asked for; `on()` holds everywhere.

    >>> on(family="acme")(Hardware(family="cpu", chips=8))
    'wants family acme, not cpu-8'
    """
    return On(
        families=_names("family", family),
        generations=_names("generation", generation),
        features=_names("features", features),
    )


def _names(what: str, given: str | Iterable[str]) -> frozenset[str]:
    names = frozenset({given} if isinstance(given, str) else given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise PluginError(f"on({what}={name!r}): expected a name, got {type(name).__name__}")
    return names


def _either(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
