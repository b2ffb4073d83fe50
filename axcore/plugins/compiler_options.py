"""What the installed plugins want a train step to be compiled with."""

from collections.abc import Mapping, Sequence

from axcore.errors import PluginError
from axcore.plugins.compiling import CompilerOptions
from axcore.plugins.hardware import Hardware
from axcore.plugins.host import plugin_host

Option = str | bool | int | float


def wanted_compiler_options(
    hardware: Hardware, records: Sequence[CompilerOptions] | None = None
) -> Mapping[str, Option]:
    """Returns the options for `hardware`, by name.

    Args:
        hardware: What is compiled for.
        records: Who is asked; those of all plugins if left out.

    Raises:
        PluginError: Two records want different values of one option, or one gives no options.
    """
    records = plugin_host().records(CompilerOptions) if records is None else records
    wanted: dict[str, tuple[Option, CompilerOptions]] = {}
    for record in records:
        if record.on(hardware) is not None:
            continue
        for name, value in _options_of(record, hardware).items():
            before, first = wanted.setdefault(name, (value, record))
            if before != value:
                raise PluginError(
                    f"{first.name} ({first.plugin}) wants {name}={before} and {record.name} "
                    f"({record.plugin}) wants {name}={value}",
                    where=f"compiler options for {hardware.name}",
                    mend=f"set AXCORE_BLOCK={record.plugin}",
                )
    return {name: value for name, (value, _) in wanted.items()}


def _options_of(record: CompilerOptions, hardware: Hardware) -> Mapping[str, Option]:
    options: object = record.fn.resolve()(hardware)
    if not isinstance(options, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Option) for name, value in options.items()
    ):
        raise PluginError(
            f"{record.fn.target} returned {options!r}; expected a mapping from option to value",
            where=f"compiler options {record.name!r} of plugin {record.plugin!r}",
            mend=f"report this to the authors, or set AXCORE_BLOCK={record.plugin}",
        )
    return options
