"""The records that name code: ops, kernels, layer variants, data sources, commands and others.

Each names its code by a `Ref`, so that making a record imports nothing.
"""

from collections.abc import Callable
from typing import ClassVar

import attrs

from axcore.errors import PluginError
from axcore.plugins.fields import a_callable, a_name, of_type
from axcore.plugins.hardware import Hardware
from axcore.plugins.predicates import on
from axcore.plugins.record import Record
from axcore.plugins.ref import Ref

Predicate = Callable[[Hardware], str | None]
"""From hardware to None for yes, or the reason why not."""


def why_not(record: Record, predicate: Predicate, hardware: Hardware) -> str | None:
    """Returns what a record's `on` says of some hardware.

    Raises:
        PluginError: It returned neither None nor a reason. What it raises itself gains a note.
    """
    try:
        reason = predicate(hardware)
    except Exception as error:
        error.add_note(f"in `on` of {record.kind} {record.key} of plugin {record.plugin!r}")
        raise
    if reason is not None and not (isinstance(reason, str) and reason):
        raise PluginError(
            f"`on` of {record.kind} {record.key} returned {reason!r}; expected None or a reason",
            where=f"plugin {record.plugin!r}",
            mend=f"return None where the {record.kind} fits, and why it does not as a str "
            "otherwise",
        )
    return reason


@attrs.frozen(kw_only=True)
class Op(Record):
    """Something layers ask for, and kernels compete to serve.

    Args:
        name: As kernels name it.
        fn: The function that layers call.
        summary: One line.
        contract: The `axcore.testing.OpContract` by which suites prove its kernels right.
        typical: `() -> Call`: what models typically ask of it, for `axcore kernels`.
    """

    kind: ClassVar[str] = "op"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    contract: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    typical: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))


@attrs.frozen(kw_only=True)
class Kernel(Record):
    """One implementation of an op.

    Args:
        op: The op's name.
        name: Unique among the op's kernels; what pins and reports use.
        fn: The function; the op says how it is called.
        on: From hardware to None, or why not there. Anywhere where not given.
        accepts: From an abstract call (shapes, dtypes, features) to None, or why not that one.
        priority: 0 reference, 50 portable, 100 portable Pallas, 200 hardware plugin, 300 one
            generation only.
        tiles: The `axcore.ops.TileTable` of its block sizes, where `axcore kernels tune` can
            measure which are best.
    """

    kind: ClassVar[str] = "kernel"
    key_fields: ClassVar[tuple[str, ...]] = ("op", "name")

    op: str = attrs.field(validator=a_name)
    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    on: Predicate = attrs.field(default=on(), validator=a_callable)
    accepts: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    priority: int = attrs.field(validator=of_type(int))
    tiles: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))

    def why_not_on(self, hardware: Hardware) -> str | None:
        """Returns None where the kernel is meant for `hardware`, else the reason why it is not.

        Raises:
            PluginError: The predicate returned neither None nor a reason. What it raises itself
                gains a note.
        """
        return why_not(self, self.on, hardware)


@attrs.frozen(kw_only=True)
class LayerVariant(Record):
    """A layer that can stand where another layer stands.

    Args:
        name: As a user asks for it.
        config: Its Config class, or a function from the config it replaces to its own.
        replaces: The layer class that it stands in for.
        summary: One line.
    """

    kind: ClassVar[str] = "layer variant"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    replaces: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class Modifier(Record):
    """A change of configs that users ask for by name: `axcore train tiny --modify NAME`.

    Args:
        name: As a user asks for it.
        config: A config class whose instances have a pure `apply(cfg, hardware) -> cfg`; users set
            its fields by `--modify 'NAME(field=value)'`.
        summary: One line.
    """

    kind: ClassVar[str] = "modifier"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class DataSource(Record):
    """Something that text to train on comes from.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Source`.
        summary: One line.
    """

    kind: ClassVar[str] = "data source"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class DataTokenizer(Record):
    """A way from text to token numbers.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Tokenizer`.
        summary: One line.
    """

    kind: ClassVar[str] = "tokenizer"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class MetricWriter(Record):
    """Something that a run's metrics are written to.

    Args:
        name: As a user asks for it: `--set "writers=('json_lines', 'NAME')"`.
        fn: A function from the run directory, a str, and the step that the run goes on from to a
            writer: `write(step, split, metrics)` and `close()`, as `axcore.trainer.Writer`. What
            an earlier start wrote past that step is dropped; it will be written again.
        summary: One line.
    """

    kind: ClassVar[str] = "metric writer"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class RunObserver(Record):
    """Something that watches runs, where their config names it. It cannot change them.

    Args:
        name: As a user asks for it: `--set "observers=('NAME',)"`.
        fn: A function of no arguments, or a class, that makes an observer: what is called with
            each `axcore.trainer.Event` of one run.
        summary: One line.
    """

    kind: ClassVar[str] = "observer"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class EnvironmentFlags(Record):
    """Flags that some hardware wants in an environment variable before JAX starts.

    Args:
        name: Shown where two records disagree.
        variable: The environment variable, which holds `--flag=value` texts with blanks between.
        on: From hardware to None, or why the flags are not meant for it.
        fn: A function from hardware to a mapping of flag (`--xla_...`) to value; imports no jax.
        summary: One line.
    """

    kind: ClassVar[str] = "environment flags"

    name: str = attrs.field(validator=a_name)
    variable: str = attrs.field(validator=a_name)
    on: Predicate = attrs.field(default=on(), validator=a_callable)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class Experiment(Record):
    """A named, complete training config.

    Args:
        name: As `axcore train NAME` takes it.
        fn: A function of no arguments that returns the trainer's config.
        summary: One line, for the list of experiments.
    """

    kind: ClassVar[str] = "experiment"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class Command(Record):
    """A subcommand of `axcore`.

    Args:
        name: As it is typed.
        fn: A click command; imported when it is called or its own help is asked for.
        summary: One line, for `axcore --help`, which imports no command.
    """

    kind: ClassVar[str] = "command"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class DoctorCheck(Record):
    """One thing that `axcore doctor` looks at.

    Args:
        name: Shown beside what was found.
        fn: A function of no arguments that yields `Finding`s.
        summary: One line.
    """

    kind: ClassVar[str] = "doctor check"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
