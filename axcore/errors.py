"""The errors axcore raises on purpose: what is wrong, where it is, and how to fix it.

Every message has up to four lines:

    ConfigError: expected int, got 'twelve'
      where:  model.decoder.stack.num_layers
      set in: --set
      hint:   --set model.decoder.stack.num_layers=4

Each class carries the exit code that the command line ends with.
"""

from typing import ClassVar


class AxcoreError(Exception):
    """Base of every error that axcore raises on purpose.

    Args:
        what: What is wrong, with the values that are wrong. One or more sentences.
        where: Path in the config tree, file and record, or module path.
        set_in: The function, file or flag that set the offending value.
        hint: What to type or change.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        set_in: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, where, set_in, hint)
        self.what = what
        self.where = where
        self.set_in = set_in
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.set_in, self.hint)

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("where", self.where), ("set in", self.set_in), ("hint", self.hint)):
            if text:
                lines.append(f"  {label + ':':<8}" + text.replace("\n", "\n          "))
        return "\n".join(lines)


def _rebuild(
    cls: type[AxcoreError], what: str, where: str | None, set_in: str | None, hint: str | None
) -> AxcoreError:
    return cls(what, where=where, set_in=set_in, hint=hint)


class ConfigError(AxcoreError, ValueError):
    """A config value, path, file or edit is wrong."""

    exit_code = 2


class ModuleError(AxcoreError):
    """A module is declared or used in a way that cannot work."""

    exit_code = 3


class ShardingError(AxcoreError):
    """A mesh or a sharding does not fit the devices or the parameters."""

    exit_code = 3


class PluginError(AxcoreError):
    """A plugin is missing, broken, incompatible, or in conflict with another."""

    exit_code = 4


class KernelError(AxcoreError):
    """No kernel can serve a call, or a pin names one that cannot."""

    exit_code = 5


class DataError(AxcoreError):
    """Training or evaluation data is missing, empty or malformed."""

    exit_code = 6


class CheckpointError(AxcoreError):
    """A checkpoint or run directory cannot be used as asked; nothing in it was changed."""

    exit_code = 7


class TrainingError(AxcoreError):
    """Training itself went wrong, a loss that stays non-finite for example."""

    exit_code = 8


class CorruptionError(AxcoreError):
    """A device silently changed parameters, or computes wrongly; that state was not saved."""

    exit_code = 15


class ComplexityError(AxcoreError):
    """Lines of code could not be measured, or a feature costs more of them than it may."""

    exit_code = 10


class ProcessError(AxcoreError):
    """The processes of a run did not find one another, or one of them left."""

    exit_code = 9


class AotError(AxcoreError):
    """A step that was compiled ahead of time does not fit its target, or its compiler failed."""

    exit_code = 11


class RequestError(AxcoreError, ValueError):
    """A request is wrong: its prompt is too long, or a value in it makes no sense."""

    exit_code = 2


class EngineError(AxcoreError):
    """The engine cannot answer: a step failed, or it is closed."""

    exit_code = 14
