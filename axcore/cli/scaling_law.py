"""`axcore scaling-law`: fit the loss of runs by their size and tokens."""

import json
import math
from pathlib import Path
from typing import Any

import attrs
import click

from axcore.cli import options
from axcore.errors import ConfigError
from axcore.report.table import columns

_ABOVE_0 = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--flops",
    type=_ABOVE_0,
    metavar="C",
    help="FLOPs of training, 6 x parameters x tokens, for which to print the best size.",
)
@click.option("--params", type=_ABOVE_0, metavar="N", help="Parameters of a model to predict.")
@click.option("--tokens", type=_ABOVE_0, metavar="D", help="Its tokens.")
@click.option("--trust-code", is_flag=True, help="Run code that came with a run of somebody else.")
@options.as_json
def scaling_law(
    runs: tuple[Path, ...],
    flops: float | None,
    params: float | None,
    tokens: float | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Fit L = E + A / N^alpha + B / D^beta to the validation losses of RUNS.

    A folder of runs, such as that of a sweep, means all of its runs that are done.
    """
    from axcore.resilience.run_summary import find_runs, summarise_run
    from axcore.runs.scaling_law import fit_scaling_law, left_out_losses, read_points

    if (params is None) != (tokens is None):
        raise click.UsageError("give --params and --tokens together")
    by_folder = {folder: list(find_runs(folder)) for folder in runs}
    for folder in (one for one, there in by_folder.items() if not there):
        raise ConfigError("there is no run", where=str(folder), hint="name runs, or their folder")
    # A run that is named twice, as by a sweep and by itself, counts once.
    found = list({one.resolve(): one for there in by_folder.values() for one in there}.values())
    undone = [str(one) for one in found if summarise_run(one).state != "done"]
    if undone:
        click.echo(f"left out, since they are not done: {', '.join(undone)}", err=True)
    points = read_points([one for one in found if str(one) not in undone], trust_code=trust_code)
    diverged = [one.name for one in points if not math.isfinite(one.loss)]
    if diverged:
        click.echo(f"left out, since their losses are not finite: {', '.join(diverged)}", err=True)
    points = [one for one in points if math.isfinite(one.loss)]
    law = fit_scaling_law(points)
    wanted: list[tuple[str, float, float]] = []
    if flops is not None:
        wanted.append((f"best for {flops:.3g} FLOPs", *law.best_sizes(flops)))
    if params is not None and tokens is not None:
        wanted.append(("wanted", params, tokens))
    predicted: list[dict[str, Any]] = [
        {
            "name": name,
            "params": size,
            "tokens": length,
            "loss": law.loss(size, length),
            "left_one_out": sorted(left_out_losses(points, law, size, length)),
        }
        for name, size, length in wanted
    ]
    if as_json:
        fitted = [
            {**attrs.asdict(one), "fitted": law.loss(one.num_params, one.num_tokens)}
            for one in points
        ]
        result = {"law": attrs.asdict(law), "runs": fitted, "predicted": predicted}
        click.echo(json.dumps(result, indent=2))
        return
    rows = [
        _row(one.name, one.num_params, one.num_tokens, f"{one.loss:.4f}", law) for one in points
    ]
    rows += [_row(name, size, length, "-", law) for name, size, length in wanted]
    click.echo(columns(("run", "parameters", "tokens", "loss", "fitted"), rows))
    click.echo(
        f"\nL = {law.irreducible:.4g} + {law.params_factor:.4g} / N^{law.params_exponent:.4g} "
        f"+ {law.tokens_factor:.4g} / D^{law.tokens_exponent:.4g}"
    )
    for one in predicted:
        if losses := one["left_one_out"]:
            click.echo(
                f"{one['name']}: {losses[0]:.4f} to {losses[-1]:.4f} by the laws that leave out "
                "one run each"
            )


def _row(name: str, size: float, length: float, loss: str, law: Any) -> tuple[str, ...]:
    shown = options.escape_control_characters(name)
    return shown, f"{size:.4g}", f"{length:.4g}", loss, f"{law.loss(size, length):.4f}"
