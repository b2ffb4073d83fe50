"""`Plugin`: one plugin and what has become of it; `survey`: what can be said before importing."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import attrs

from axcore.errors import PluginError
from axcore.plugins.discovery import LEVEL, PluginCandidate
from axcore.plugins.plugin_filter import PluginFilter
from axcore.registration.record import Record
from axcore.registration.returns import CORE

State = Literal["found", "blocked", "incompatible", "loaded", "failed"]


@attrs.frozen(kw_only=True)
class Plugin:
    """One plugin, as far as the host has got with it.

    Args:
        candidate: Where it comes from.
        state: "found" before it is imported, then "loaded" or "failed"; "blocked" by the
            environment; "incompatible" where it is written for another level.
        reason: Why it is blocked or incompatible; empty otherwise.
        error: Why it failed, where it did.
        import_time_s: Of its module, where it was imported.
        hooks: The hooks it implements.
        records: What it brought, sorted.
    """

    candidate: PluginCandidate
    state: State = "found"
    reason: str = ""
    error: BaseException | None = attrs.field(default=None, eq=False)
    import_time_s: float | None = attrs.field(default=None, eq=False)
    hooks: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()

    @property
    def name(self) -> str:
        """The plugin's name everywhere."""
        return self.candidate.name

    @property
    def is_broken(self) -> bool:
        """Whether runs refuse to start while it is installed and not blocked."""
        return self.state in ("failed", "incompatible")

    @property
    def trouble(self) -> str:
        """One line on what is wrong, empty where nothing is."""
        if self.error is None:
            return self.reason
        if isinstance(self.error, PluginError):
            return self.error.what
        return f"{type(self.error).__name__}: {self.error}"

    def failed(self, error: BaseException) -> "Plugin":
        """Return the plugin as failed; what it brought is dropped."""
        return attrs.evolve(self, state="failed", error=error, records=())


def survey(
    candidates: Iterable[PluginCandidate], plugin_filter: PluginFilter
) -> tuple[Plugin, ...]:
    """Return one plugin per name, in order of names, none of them imported yet."""
    by_name: dict[str, list[PluginCandidate]] = defaultdict(list)
    for candidate in candidates:
        by_name[candidate.name].append(candidate)
    return tuple(_first_look(by_name[name], plugin_filter) for name in sorted(by_name))


def _first_look(offers: list[PluginCandidate], plugin_filter: PluginFilter) -> Plugin:
    fitting = [offer for offer in offers if offer.level == LEVEL]
    plugin = Plugin(candidate=(fitting or offers)[0])
    blocked = plugin_filter.exclusion_reason(plugin.name)
    if blocked:
        return attrs.evolve(plugin, state="blocked", reason=blocked)
    if not fitting:
        level = plugin.candidate.level
        reason = f"written for axcore.v{level}; this axcore speaks axcore.v{LEVEL}"
        return attrs.evolve(plugin, state="incompatible", reason=reason)
    if plugin.candidate.problem:
        return plugin.failed(_bad_metadata(plugin.candidate))
    if plugin.name == CORE:
        return plugin.failed(_reserved(plugin.candidate))
    if len(fitting) > 1:
        return plugin.failed(_offered_twice(fitting))
    return plugin


def _bad_metadata(candidate: PluginCandidate) -> PluginError:
    return PluginError(
        f"distribution {candidate.distribution} cannot be used: {candidate.problem}",
        hint=f"pip install --upgrade --force-reinstall {candidate.distribution}",
    )


def _reserved(candidate: PluginCandidate) -> PluginError:
    return PluginError(
        f"distribution {candidate.distribution} names its plugin {CORE!r}, which is axcore's own",
        hint=f"uninstall {candidate.distribution}",
    )


def _offered_twice(offers: list[PluginCandidate]) -> PluginError:
    distributions = " and ".join(f"{offer.distribution} {offer.version}" for offer in offers)
    return PluginError(
        f"two distributions bring a plugin named {offers[0].name!r}: {distributions}",
        hint="uninstall one of them",
    )
