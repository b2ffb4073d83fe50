"""Records of what surrounds a run: observers, storages, launchers, commands, APIs, checks."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import attrs

from axcore.errors import PluginError
from axcore.registration import (
    Record,
    Ref,
    a_name,
    frozen_tuple,
    mismatch,
    of_type,
    record,
    tuple_of,
)


@record(hook="observers")
@attrs.frozen(kw_only=True)
class RunObserver(Record):
    """Something that watches runs, where their config names it. It cannot change them.

    It gets every event of a run as a frozen value, in a thread of its own. One that raises, or has
    not finished after 300 s (`AXCORE_CALLBACK_TIMEOUT_S`), is switched off with a warning, and the
    run continues.

    Args:
        name: As a user asks for it: `--set "logging.observers=('NAME',)"`.
        fn: A function of no arguments, or a class, that makes an observer: what is called with
            each `axcore.trainer.Event` of one run.
        summary: One line.
        library: What it imports, if anything; a run looks for it before it reads data.

    Example:
        @hook.observers
        def observers():
            yield RunObserver(name="acme_lamp", fn=Ref("axl_acme.lamp:Lamp"),
                              summary="A lamp that is on while a run makes steps")
    """

    kind: ClassVar[str] = "observer"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    library: str = attrs.field(default="", validator=of_type(str))


@record(hook="metric_writers")
@attrs.frozen(kw_only=True)
class MetricWriter(Record):
    """Something that a run's metrics are written to, where its config names it.

    Metrics may not be lost: a writer that raises, or has not finished a call after 300 s
    (`AXCORE_CALLBACK_TIMEOUT_S`), ends the run with an error that names it. All calls of a writer
    are made in one thread of its own.

    Args:
        name: As a user asks for it: `--set "logging.writers=('json_lines', 'NAME')"`.
        fn: A function from the run directory, a str, and the step that the run resumes from to a
            writer: `write(step, split, metrics)` and `close()`, as `axcore.trainer.Writer`. What
            an earlier start wrote past that step is dropped; it will be written again.
        summary: One line.
        library: What it imports, if anything; a run looks for it before it reads data.

    Example:
        @hook.metric_writers
        def metric_writers():
            yield MetricWriter(name="acme_board", fn=Ref("axl_acme.board:open_board"),
                               summary="Curves on Acme's board")
    """

    kind: ClassVar[str] = "metric writer"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    library: str = attrs.field(default="", validator=of_type(str))


@record(hook="checkpoint_storages")
@attrs.frozen(kw_only=True)
class CheckpointStorage(Record):
    """A place where checkpoints can be kept: `--set checkpoint.directory=NAME://PLACE`.

    Args:
        name: The scheme of its directories.
        fn: A function from what follows `NAME://`, a str, to an `axcore.checkpoint.StepStorage`; it
            touches nothing before it is asked to.
        summary: One line.

    Example:
        @hook.checkpoint_storages
        def checkpoint_storages():
            yield CheckpointStorage(name="acme", fn=Ref("axl_acme.vault:open_vault"),
                                    summary="Acme's vault")
    """

    kind: ClassVar[str] = "checkpoint storage"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="launchers")
@attrs.frozen(kw_only=True)
class JobLauncher(Record):
    """Something that starts a run on an engine: `axcore launch NAME EXPERIMENT`.

    Args:
        name: As a user asks for it.
        config: A config class, a subclass of `axcore.launch.Launcher`, with a field for each thing
            that the engine wants to know.
        process_info: A function from the environment of a process, a mapping, to its
            `axcore.launch.ProcessInfo` in a run of several processes, or to None where the engine
            started no such run. It reads and changes nothing else.
        summary: One line.

    Example:
        @hook.launchers
        def launchers():
            yield JobLauncher(name="acme_grid", config=Ref("axl_acme.grid:Grid"),
                              process_info=Ref("axl_acme.grid:process_info"),
                              summary="Acme's batch queue")
    """

    kind: ClassVar[str] = "launcher"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    process_info: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="commands")
@attrs.frozen(kw_only=True)
class Command(Record):
    """A subcommand of `axcore`.

    Args:
        name: As it is typed.
        fn: A click command; imported when it is called or its own help is asked for.
        summary: One line, for `axcore --help`, which imports no command.
        generates: Models that `axcore generate` runs this command for, in place of writing text:
            each the type of a model's config in a run's `config.json`.

    Example:
        @hook.commands
        def commands():
            yield Command(name="acme-top", fn=Ref("axl_acme.top:top"), summary="Shows chip load")
    """

    kind: ClassVar[str] = "command"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    generates: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=tuple_of(str)
    )


@record(hook="model_apis")
@attrs.frozen(kw_only=True)
class ModelApi(Record):
    """What `axcore serve` answers with models that it cannot sample text from.

    Args:
        name: Of the API.
        models: Models that it is for: each the type of a model's config, as a run's `config.json`
            has it.
        fn: A function from an `axcore.serving.ApiModel` to a list of `axcore.serving.Endpoint`s.
        summary: One line.

    Example:
        @hook.model_apis
        def model_apis():
            yield ModelApi(name="acme-smell", models=("axl_acme.nose:Nose.Config",),
                           fn=Ref("axl_acme.serving:endpoints"), summary="Names smells")
    """

    kind: ClassVar[str] = "model API"

    name: str = attrs.field(validator=a_name)
    models: tuple[str, ...] = attrs.field(converter=frozen_tuple, validator=tuple_of(str))
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="doctor_checks")
@attrs.frozen(kw_only=True)
class DoctorCheck(Record):
    """One thing that `axcore doctor` looks at.

    Args:
        name: Shown next to what was found.
        fn: A function of no arguments that yields `Finding`s; one can bring a `Fix`.
        summary: One line.

    Example:
        @hook.doctor_checks
        def doctor_checks():
            yield DoctorCheck(name="acme-driver", fn=Ref("axl_acme.doctor:driver"),
                              summary="The driver is new enough")
    """

    kind: ClassVar[str] = "doctor check"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


Level = Literal["ok", "warning", "error"]
_LEVELS = ("ok", "warning", "error")


def _level(finding: Any, attribute: Any, value: Any) -> None:
    if value not in _LEVELS:
        raise mismatch(finding, attribute, value, expected=" or ".join(map(repr, _LEVELS)))


def _hint_unless_ok(finding: Any, attribute: Any, value: Any) -> None:
    of_type(str)(finding, attribute, value)
    if not value and finding.level != "ok" and finding.fix is None:
        raise PluginError(f"a Finding of level {finding.level!r} says how to fix it")


@attrs.frozen
class Fix:
    """What `axcore doctor --fix` does about a finding; it loses nothing that cannot be made again.

    Args:
        text: What it does, as a command: "remove 3 files".
        apply: Does it, once it is asked for.
    """

    text: str = attrs.field(validator=of_type(str))
    apply: Callable[[], None] = attrs.field(validator=attrs.validators.is_callable())


def _fix_or_none(finding: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, Fix | None):
        raise mismatch(finding, attribute, value, expected="a Fix")


@attrs.frozen
class Finding:
    """One thing found.

    Args:
        level: "error" stops runs from working, "warning" may surprise, "ok" informs.
        text: What was found, with values.
        hint: What to type or change; may be left out only where all is well, or there is a fix.
        fix: What `axcore doctor --fix` does about it, where it can.
    """

    level: Level = attrs.field(validator=_level)
    text: str = attrs.field(validator=of_type(str))
    hint: str = attrs.field(default="", validator=_hint_unless_ok)
    fix: Fix | None = attrs.field(default=None, validator=_fix_or_none)
