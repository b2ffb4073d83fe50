"""What installed plugins set for some hardware: environment variables and compiler options."""

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import attrs

from axcore._jax_compat import devices_have_started
from axcore.errors import PluginError
from axcore.hardware.families import HardwareFamily, first_present
from axcore.hardware.hardware import UNKNOWN, Hardware
from axcore.plugins.host import plugin_host
from axcore.plugins.records.hardware import CompilerOptions, EnvironmentFlags

_FLAGS = "a mapping from --flag to its value, as str"


@attrs.frozen
class WantedFlag:
    """One flag that a record wants: `--xla_name` in a variable, with a value."""

    variable: str
    flag: str
    value: str
    record: EnvironmentFlags

    @property
    def text(self) -> str:
        """The flag as it stands in the variable."""
        return f"{self.flag}={self.value}"


@attrs.frozen(kw_only=True)
class MergedFlags:
    """What the variables become.

    Args:
        changes: New value by variable; only those that change.
        kept: Flags wanted otherwise, where the user's own value stays.
    """

    changes: Mapping[str, str]
    kept: tuple[WantedFlag, ...]


def set_environment_flags(
    hardware: Hardware, environment: MutableMapping[str, str] | None = None
) -> MergedFlags:
    """Set what the installed plugins want for `hardware`, before JAX starts.

    Args:
        hardware: What the process is going to run on.
        environment: Where variables are read and set; the process's own if left out.

    Raises:
        PluginError: Two plugins want different values of one flag, the user's variable cannot be
            merged with, or JAX has started, and so would not read what is set.
    """
    target = os.environ if environment is None else environment
    merged = merge_flags(wanted_flags(hardware), target)
    if merged.changes and environment is None and devices_have_started():
        shown = ", ".join(f"{name}={value!r}" for name, value in merged.changes.items())
        raise PluginError(
            f"JAX has started, so it would not read {shown}",
            where=f"flags for {hardware.name}",
            hint="set them before the process starts, or name the target before using JAX",
        )
    target.update(merged.changes)
    return merged


def wanted_flags(
    hardware: Hardware, records: Sequence[EnvironmentFlags] | None = None
) -> tuple[WantedFlag, ...]:
    """Return the flags wanted for `hardware`, one of each.

    Args:
        hardware: What to ask for.
        records: Who is asked; those of all plugins if left out.

    Raises:
        PluginError: Two records want different values of one flag, or one names no flags.
    """
    records = plugin_host().records(EnvironmentFlags) if records is None else records
    found: dict[tuple[str, str], WantedFlag] = {}
    for wanted in _all_wanted(hardware, records):
        first = found.setdefault((wanted.variable, wanted.flag), wanted)
        if first.value != wanted.value:
            one, other = first.record, wanted.record
            raise PluginError(
                f"{wanted.variable}: {one.name} ({one.plugin}) wants {first.text} and "
                f"{other.name} ({other.plugin}) wants {wanted.text}",
                where=f"flags for {hardware.name}",
                hint=f"set {wanted.flag} in {wanted.variable} yourself, or set "
                f"AXCORE_BLOCK={other.plugin}",
            )
    return tuple(found.values())


def merge_flags(wanted: Sequence[WantedFlag], environment: Mapping[str, str]) -> MergedFlags:
    """Return what each variable becomes: the user's own flags first, then those not among them.

    Raises:
        PluginError: A variable contains something else than flags, the name of a file for example.
    """
    values: dict[str, list[str]] = {}
    kept: list[WantedFlag] = []
    for one in wanted:
        own = environment.get(one.variable, "").split()
        _check_are_flags(one, own)
        given = {text.partition("=")[0]: text for text in own}
        if one.flag not in given:
            values.setdefault(one.variable, list(own)).append(one.text)
        elif given[one.flag] != one.text:
            kept.append(one)
    return MergedFlags(
        changes={name: " ".join(texts) for name, texts in values.items()}, kept=tuple(kept)
    )


def expected_hardware(environment: Mapping[str, str] | None = None) -> Hardware | None:
    """Return what JAX will probably find here, of unknown generation, without starting it.

    None where no plugin says that its hardware is present: then no flags are set.
    """
    family = present_family(environment)
    return None if family is None else Hardware(family=family.name, generation=UNKNOWN)


def present_family(environment: Mapping[str, str] | None = None) -> HardwareFamily | None:
    """Return the first family whose plugin says that its hardware is present; may be None."""
    families = plugin_host().records(HardwareFamily)
    return first_present(families, os.environ if environment is None else environment)


def _all_wanted(hardware: Hardware, records: Sequence[EnvironmentFlags]) -> Iterator[WantedFlag]:
    for record in records:
        if record.requires(hardware) is not None:
            continue
        flags = record.call("fn", hardware, returns=Mapping, expected=_FLAGS)
        for flag, value in flags.items():
            if not (isinstance(flag, str) and flag.startswith("--") and isinstance(value, str)):
                raise record.wrong_return("fn", {flag: value}, _FLAGS)
            yield WantedFlag(record.variable, flag, value, record)


def _check_are_flags(wanted: WantedFlag, own: list[str]) -> None:
    strange = [text for text in own if not text.startswith("--")]
    if strange:
        raise PluginError(
            f"{wanted.variable} contains {strange[0]!r}, so {wanted.text} cannot be added",
            where=f"environment variable {wanted.variable}",
            hint="write its flags out, each as --name=value, with blanks between",
        )


Option = str | bool | int | float


def wanted_compiler_options(
    hardware: Hardware,
    records: Sequence[CompilerOptions] | None = None,
    *,
    serves: bool = False,
) -> Mapping[str, Option]:
    """Return the options for `hardware`, by name.

    Args:
        hardware: What is compiled for.
        records: Who is asked; those of all plugins if left out.
        serves: Whether they are for programs by which a model serves; else for a train step.

    Raises:
        PluginError: Two records want different values of one option, or one gives no options.
    """
    records = plugin_host().records(CompilerOptions) if records is None else records
    wanted: dict[str, tuple[Option, CompilerOptions]] = {}
    for record in records:
        if record.serves not in (None, serves) or record.requires(hardware) is not None:
            continue
        for name, value in _options_of(record, hardware).items():
            before, first = wanted.setdefault(name, (value, record))
            if before != value:
                raise PluginError(
                    f"{first.name} ({first.plugin}) wants {name}={before} and {record.name} "
                    f"({record.plugin}) wants {name}={value}",
                    where=f"compiler options for {hardware.name}",
                    hint=f"set AXCORE_BLOCK={record.plugin}",
                )
    return {name: value for name, (value, _) in wanted.items()}


def _options_of(record: CompilerOptions, hardware: Hardware) -> Mapping[str, Option]:
    expected = "a mapping from option to a str, bool, int or float"
    options: Mapping[str, Option] = record.call("fn", hardware, returns=Mapping, expected=expected)
    for name, value in options.items():
        if not (isinstance(name, str) and isinstance(value, Option)):
            raise record.wrong_return("fn", {name: value}, expected)
    return options
