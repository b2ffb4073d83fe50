"""`axcore aot --serve`: compile what serves a model for hardware that is not here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from axcore.errors import AotError
from axcore.plugins import Hardware

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


ENGINE = "engine."
"""Beginning of the paths that change the engine."""


def _rows(context: Any, parameter: Any, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers, as 1,8,64") from None


OPTIONS: tuple[Decorator, ...] = (
    click.option("--serve", "serves", is_flag=True, help="Compile what serves the model instead."),
    click.option(
        "--rows",
        metavar="N,...",
        callback=_rows,
        help="Of --serve: rows that draw at once; those of the engine by default.",
    ),
    click.option("--prompt", type=int, metavar="N", help="Of --serve: tokens of a prompt."),
    click.option(
        "--context",
        type=int,
        metavar="N",
        help="Of --serve: tokens of each row in caches; the training length by default.",
    ),
)


def serving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a command with the options of `--serve`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def serves_as_asked(
    serves: bool,
    wanted: Mapping[str, Any],
    others: Mapping[str, bool],
) -> bool:
    """Returns whether `--serve` was given.

    Args:
        serves: Whether it was.
        wanted: The values of its own options, None where not given.
        others: Whether options were given that it does not go with.

    Raises:
        UsageError: Options were given that would be passed over.
    """
    if serves:
        refused = [name for name, is_given in others.items() if is_given]
        if refused:
            raise click.UsageError(f"--serve does not go with {', '.join(refused)}")
        return True
    given = [f"--{name.replace('_', '-')}" for name, value in wanted.items() if value is not None]
    if given:
        raise click.UsageError(f"{', '.join(given)} only with --serve")
    return False


def load_serving(
    name: str, overrides: Sequence[str], *, changes: Sequence[str], hardware: Hardware
) -> tuple[Any, Any]:
    """Returns a named experiment or a config file, changed as asked, and an engine's config.

    Overrides that begin with `engine.` are of the engine, as for `axcore serve`. The hardware's
    mesh rule is of training and is not applied.

    Raises:
        As `axcore.cli.experiment.load_experiment`.
    """
    from axcore.config import apply_overrides
    from axcore.experiments.named import experiment
    from axcore.inference import EngineConfig
    from axcore.modifiers import with_changes

    own = [text.removeprefix(ENGINE) for text in overrides if text.startswith(ENGINE)]
    others = [text for text in overrides if not text.startswith(ENGINE)]
    cfg = apply_overrides(with_changes(experiment(name), changes, hardware), others)
    return cfg, apply_overrides(EngineConfig(), own, set_in=f"--set {ENGINE}")


def report_serving(
    cfg: Any,
    engine: Any,
    hardware: Hardware,
    wanted: Mapping[str, Any],
    *,
    experiment: str,
    as_json: bool,
) -> None:
    """Prints what a model takes that serves.

    Raises:
        AotError: It does not fit.
    """
    from axcore.aot import ServingLoad, compile_serving, serving_text
    from axcore.config import evolve

    if wanted["rows"] is not None:
        engine = evolve(engine, batch_size_buckets=wanted["rows"], max_num_seqs=max(wanted["rows"]))
    context = wanted["context"] or engine.max_length or _training_length(cfg)
    given = {} if wanted["prompt"] is None else {"prompt": wanted["prompt"]}
    load = ServingLoad(engine=evolve(engine, max_length=context), **given)
    report = compile_serving(cfg, hardware, load, experiment=experiment)
    click.echo(report.to_json() if as_json else serving_text(report))
    spare = report.spare_bytes
    if spare is not None and spare < 0:
        raise AotError(
            f"{experiment} does not fit: it needs {-spare:,} bytes too much",
            where=f"target {hardware.name}",
            hint="name more chips, or chips with more memory, or fewer pages by --set "
            f"engine.num_pages={report.pages_that_fit}",
        )


def _training_length(cfg: Any) -> int:
    """Returns the tokens of a row that the model is trained on."""
    length: int = cfg.data.for_shapes().build().batch_spec().axis_sizes()["time"]
    return length
