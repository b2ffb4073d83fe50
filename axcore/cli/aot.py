"""`axcore aot`: compile a train step, or what serves a model, for hardware that you do not have."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from axcore.aot import (
    Attempt,
    Report,
    ReportCache,
    compile_resolved,
    fastest,
    find_aot_target,
    report_page,
    report_text,
    search,
    search_fields,
    search_text,
    verdict,
)
from axcore.cli import options
from axcore.config.json_files import parse_json
from axcore.errors import AotError
from axcore.launch.job import experiment_label
from axcore.plugins import Hardware, plugin_host
from axcore.resilience.compile_cache import cache_folder

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


ENGINE = "engine."
"""Beginning of the paths that change the engine."""


def _rows(context: Any, parameter: Any, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers, as 1,8,64") from None


OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--serve", "serves", is_flag=True, help="Compile the programs of a server instead."
    ),
    click.option(
        "--rows",
        metavar="N,...",
        callback=_rows,
        help="With --serve: sequences that decode at once; max_num_seqs of the engine by default.",
    ),
    click.option(
        "--prompt",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --serve or --rollouts: tokens of a prompt.",
    ),
    click.option(
        "--context",
        type=int,
        metavar="N",
        help="With --serve: tokens of each row in caches; the training length by default.",
    ),
    click.option(
        "--rollouts",
        "samples",
        is_flag=True,
        help="Compile trainer and engine of training on rewards.",
    ),
    click.option(
        "--chip-hour",
        "price",
        type=click.FloatRange(min=0, min_open=True),
        metavar="PRICE",
        help="With --rollouts: what a chip costs for an hour.",
    ),
)


def _serving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options of `--serve` and `--rollouts`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command()
@options.experiment
@click.option("--target", metavar="NAME", required=True, help="Hardware, such as cpu-8.")
@options.modify
@options.overrides
@options.as_json
@click.option(
    "--html",
    "page",
    type=options.OutputPath(),
    metavar="FILE",
    help="Also write the report as a page.",
)
@click.option("--search", "searches", is_flag=True, help="Find the fastest change that fits.")
@_serving_options
def aot(
    experiment: str,
    target: str,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    page: Path | None,
    searches: bool,
    serves: bool,
    samples: bool,
    price: float | None,
    **wanted: Any,
) -> None:
    """Compile the train step of EXPERIMENT for hardware you do not have, and report.

    The report shows whether the step fits, where memory goes, and how long a step should take. It
    needs the hardware's plugin, and its compiler. With --serve it is about the programs of a
    server; with --rollouts about a train step and the engine that samples for it.
    """
    plugin_host().require_healthy()
    hardware = Hardware.parse(target)
    find_aot_target(hardware)
    others = {"--search": searches, "--html": page is not None}
    if samples:
        others |= {"--serve": serves, **{f"--{name}": wanted[name] for name in ("rows", "context")}}
        _refuse_together("--rollouts", others)
        _report_rollouts(
            _load(experiment, overrides, changes=changes, hardware=hardware),
            wanted["prompt"],
            price,
            experiment=experiment_label(experiment),
            as_json=as_json,
        )
        return
    if price is not None:
        raise click.UsageError("--chip-hour only with --rollouts")
    if _serves_as_asked(serves, wanted, others):
        cfg, engine = _load_serving(experiment, overrides, changes=changes, hardware=hardware)
        click.echo(f"compiling {experiment} to serve on {hardware.name}", err=True)
        name = experiment_label(experiment)
        _report_serving(cfg, engine, hardware, wanted, experiment=name, as_json=as_json)
        return
    resolved = _load(experiment, overrides, changes=changes, hardware=hardware)

    def compiled(cfg: Any) -> Report:
        kept = ReportCache(cache_folder() / "reports") if searches else None
        return compile_resolved(
            attrs.evolve(resolved, config=cfg), experiment_label(experiment), kept=kept
        )

    def announce(changes: str) -> None:
        click.echo(f"compiling {experiment} for {hardware.name}, {changes}", err=True)

    attempts = search(resolved.config, hardware, compiled, announce=announce) if searches else ()
    if not searches:
        click.echo(f"compiling {experiment} for {hardware.name}", err=True)
    report = attempts[0].report if attempts else compiled(resolved.config)
    if report is None:
        raise AotError(attempts[0].reason, where=f"target {hardware.name}")
    if page is not None:
        options.write_output(page, report_page(report))
    if as_json:
        found = {"search": search_fields(attempts)} if attempts else {}
        click.echo(json.dumps({**parse_json(report.to_json()), **found}, indent=2))
    else:
        click.echo(report_text(report))
        if attempts:
            click.echo(f"\n{search_text(attempts)}")
    if report.fits is False:
        raise AotError(
            f"{report.experiment} {verdict(report)}",
            where=f"target {hardware.name}",
            hint=_hint(attempts),
        )


def _hint(attempts: Sequence[Attempt]) -> str:
    """Return what to do about a step that does not fit."""
    if not attempts:
        return "add --search to look for a change that fits, or name more chips"
    best = fastest(attempts)
    if best is None:
        return "nothing that was tried fits: name more chips, or chips with more memory"
    return " ".join(f'--modify "{change}"' for change in best.changes)


def _serves_as_asked(
    serves: bool,
    wanted: Mapping[str, Any],
    others: Mapping[str, bool],
) -> bool:
    """Return whether `--serve` was given.

    Args:
        serves: Whether it was.
        wanted: The values of its own options, None where not given.
        others: Whether options were given that it does not go with.

    Raises:
        UsageError: Options were given that would be passed over.
    """
    if serves:
        _refuse_together("--serve", others)
        return True
    given = [f"--{name.replace('_', '-')}" for name, value in wanted.items() if value is not None]
    if given:
        raise click.UsageError(f"{', '.join(given)} only with --serve")
    return False


def _refuse_together(option: str, others: Mapping[str, Any]) -> None:
    """Refuse options that an option does not go with.

    Raises:
        UsageError: One was given.
    """
    refused = [name for name, is_given in others.items() if is_given]
    if refused:
        raise click.UsageError(f"{option} does not go with {', '.join(refused)}")


def _load(
    name: str, overrides: Sequence[str], *, changes: Sequence[str], hardware: Hardware
) -> Any:
    from axcore.experiments.named import load_resolved

    return load_resolved(name, overrides, changes=changes, hardware=hardware)


def _report_rollouts(
    resolved: Any, prompt: int | None, price: float | None, *, experiment: str, as_json: bool
) -> None:
    """Print what training on rollouts takes.

    Raises:
        AotError: It does not fit.
    """
    from axcore.aot import compile_rollouts, rollout_text

    hardware = resolved.hardware
    click.echo(f"compiling {experiment} with rollouts for {hardware.name}", err=True)
    report = compile_rollouts(resolved, prompt=prompt, experiment=experiment)
    click.echo(report.to_json() if as_json else rollout_text(report, price))
    if report.fits is False:
        raise AotError(
            f"{experiment} does not fit: trainer and engine need {report.peak_bytes:,} bytes",
            where=f"target {hardware.name}",
            hint=_rollout_hint(report),
        )


def _rollout_hint(report: Any) -> str:
    """Return what to do where trainer and engine do not fit together."""
    pages, size = report.pages_that_fit, report.page_size
    # One longest text is the least that an engine samples.
    if pages and pages * size > report.prompt + report.new_tokens:
        return f"--set data.engine.num_pages={pages}"
    return (
        "a smaller data.engine.max_num_seqs or data.batch_size, layers split over devices as by "
        "--set \"mesh={'model': -1}\", more chips, or chips with more memory"
    )


def _load_serving(
    name: str, overrides: Sequence[str], *, changes: Sequence[str], hardware: Hardware
) -> tuple[Any, Any]:
    """Return a named experiment or a config file, changed as asked, and an engine's config.

    Overrides that begin with `engine.` are of the engine, as for `axcore serve`. The hardware's
    mesh rule is of training and is not applied.

    Raises:
        As `axcore.experiments.named.load_experiment`.
    """
    from axcore.config import apply_overrides
    from axcore.experiments.named import experiment
    from axcore.inference import EngineConfig
    from axcore.modifiers import with_changes

    own = [text.removeprefix(ENGINE) for text in overrides if text.startswith(ENGINE)]
    others = [text for text in overrides if not text.startswith(ENGINE)]
    cfg = apply_overrides(with_changes(experiment(name), changes, hardware), others)
    return cfg, apply_overrides(EngineConfig(), own, set_in=f"--set {ENGINE}")


def _report_serving(
    cfg: Any,
    engine: Any,
    hardware: Hardware,
    wanted: Mapping[str, Any],
    *,
    experiment: str,
    as_json: bool,
) -> None:
    """Print what a model takes that serves.

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
    """Return the tokens of a row that the model is trained on."""
    length: int = cfg.data.for_shapes().build().batch_spec().axis_sizes()["time"]
    return length
