"""`requires(...)`: a predicate on hardware that is itself a value, so records compare and hash."""

from collections.abc import Callable, Iterable

import attrs

from axcore.errors import PluginError
from axcore.hardware.hardware import Hardware
from axcore.registration import Record, note_owner

Predicate = Callable[[Hardware], str | None]
"""From hardware to None for yes, or the reason why not."""


@attrs.frozen(kw_only=True)
class HardwareRequirement:
    """A predicate made by `requires`: calling it gives None for yes, or the reason why not."""

    families: frozenset[str] = frozenset()
    generations: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()

    def __call__(self, hardware: Hardware) -> str | None:
        """Return None where `hardware` is meant, else the reason why it is not."""
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


def requires(
    *,
    family: str | Iterable[str] = (),
    generation: str | Iterable[str] = (),
    features: str | Iterable[str] = (),
) -> HardwareRequirement:
    """Return a predicate: of one of these families, one of these generations, with all features.

    What is left out is not asked for; `requires()` holds everywhere.

    >>> requires(family="acme")(Hardware(family="cpu", chips=8))
    'wants family acme, not cpu-8'
    """
    return HardwareRequirement(
        families=_names("family", family),
        generations=_names("generation", generation),
        features=_names("features", features),
    )


def predicate_reason(record: Record, predicate: Predicate, hardware: Hardware) -> str | None:
    """Return what a record's `requires` says about some hardware.

    Raises:
        PluginError: It returned neither None nor a reason. What it raises itself gains a note.
    """
    try:
        reason = predicate(hardware)
    except Exception as error:
        where = f"`requires` of {record.kind} {record.key} of plugin {record.plugin!r}"
        note_owner(error, where, record.plugin)
        raise
    if reason is not None and not (isinstance(reason, str) and reason):
        raise PluginError(
            f"`requires` of {record.kind} {record.key} returned {reason!r}; expected None or a "
            "reason",
            where=f"plugin {record.plugin!r}",
            hint=f"return None where the {record.kind} fits, and why it does not as a str "
            "otherwise",
        )
    return reason


def _names(what: str, given: str | Iterable[str]) -> frozenset[str]:
    names = frozenset({given} if isinstance(given, str) else given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise PluginError(
                f"requires({what}={name!r}): expected a name, got {type(name).__name__}"
            )
    return names


def _either(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
