"""`axcore convert`: weights of published models to runs, and of runs to published models."""

import re

import click

from axcore.cli import options
from axcore.errors import ConfigError

PREFIX = "hf:"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(KB|MB|GB|TB)", re.IGNORECASE)
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@click.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="What weights become; by default they stay as they are.",
)
@click.option("--max-shard-size", default="5GB", show_default=True, help="Of a file of weights.")
@click.option("--step", type=int, help="Checkpoint to export; by default the newest.")
@click.option("--merged", is_flag=True, help="Add adapters to the weights that they correct.")
@options.trust_code
def convert(
    source: str,
    target: str,
    dtype: str | None,
    max_shard_size: str,
    step: int | None,
    merged: bool,
    trust_code: bool,
) -> None:
    """Convert hf:FOLDER, a published model, to a run directory; or a run directory to hf:FOLDER.

    Of a run that trains adapters, these are written, in the format of PEFT.
    """
    from axcore.runs import export_run, import_run, load_run

    kept: dict[str, object] = {"dtype": dtype}
    read, written = (name.removeprefix(PREFIX) for name in (source, target))
    if source.startswith(PREFIX) == target.startswith(PREFIX):
        raise ConfigError(
            f"of {source!r} and {target!r} one names a published model and the other a run",
            hint="axcore convert hf:FOLDER runs/NAME, or axcore convert runs/NAME hf:FOLDER",
        )
    if source.startswith(PREFIX):
        run = import_run(read, written, **kept)  # type: ignore[arg-type]
        click.echo(f"{run.directory} holds the model of {read}; axcore generate {written}")
        return
    kept |= {"max_shard_bytes": _num_bytes(max_shard_size), "merged": merged}
    run = load_run(read, step=step, trust_code=trust_code)
    what = export_run(run, written, **kept)  # type: ignore[arg-type]
    click.echo(f"{written} holds step {run.step} of {read} as {what}")


def _num_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--max-shard-size is {text!r}", where="--max-shard-size", hint="write 500MB or 5GB"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])
