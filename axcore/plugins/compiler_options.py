"""What the installed plugins want programs to be compiled with."""

from collections.abc import Mapping, Sequence

from axcore.errors import PluginError
from axcore.hardware.hardware import Hardware
from axcore.plugins.host import plugin_host
from axcore.plugins.records.hardware import CompilerOptions

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
