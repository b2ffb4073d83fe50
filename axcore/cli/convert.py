"""`axcore convert` and `axcore merge`: weights between formats, and several models as one."""

import re
import shlex
from typing import Any

import click

from axcore.cli import options
from axcore.errors import ConfigError

HUGGING_FACE, GGUF, ORBAX = "hf:", "gguf:", "orbax:"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(KB|MB|GB|TB)", re.IGNORECASE)
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_USAGE = (
    "axcore convert hf:FOLDER runs/NAME, axcore convert runs/NAME hf:FOLDER, "
    "axcore convert gguf:FILE runs/NAME, axcore convert runs/NAME gguf:FILE, or "
    "axcore convert orbax:FOLDER runs/NAME --config FOLDER"
)


@click.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "q8_0", "q6_k", "q4_k"]),
    help="Dtype to convert weights to; by default they keep theirs. q8_0, q6_k and q4_k are for "
    "gguf:FILE only.",
)
@click.option("--max-shard-size", help="Size of the largest file of weights.  [default: 5GB]")
@click.option("--step", type=int, help="Checkpoint to convert; by default the newest.")
@click.option("--base", help="Folder of the adapters' base model; by default, the one they name.")
@click.option(
    "--text-part",
    is_flag=True,
    help="Read the language model alone of a model of pictures and text, where hf:FOLDER can be "
    "read as either.",
)
@click.option("--merged", is_flag=True, help="Merge adapters into the weights of their base model.")
@click.option(
    "--config", metavar="FOLDER|EXPERIMENT", help="What model orbax:FOLDER contains the weights of."
)
@click.option(
    "--rotary-rows",
    type=click.Choice(["halves", "pairs"]),
    help="Rows of a head that MaxText rotated together; by default what the model's family has.",
)
@options.trust_code
@options.allow_unknown_fields
def convert(
    source: str,
    target: str,
    dtype: Any,
    max_shard_size: str | None,
    step: int | None,
    base: str | None,
    text_part: bool,
    merged: bool,
    config: str | None,
    rotary_rows: Any,
    trust_code: bool,
    allow_unknown_fields: bool,
) -> None:
    """Convert hf:FOLDER, a pretrained checkpoint, to a run directory, or a run to hf:FOLDER.

    Or a run directory to gguf:FILE, for llama.cpp, or such a file to a run. Of a run that trains
    adapters, hf:FOLDER has these, in the format of PEFT; a folder of such adapters makes a run of
    their base model.

    Or orbax:FOLDER, a checkpoint of MaxText or AXLearn, to a run directory, with --config.
    """
    from axcore.models import CausalLM
    from axcore.runs import export_gguf, export_run, import_orbax, import_run, load_run

    _check_names(source, target)
    _check_options(
        source,
        target,
        dtype=dtype,
        max_shard_size=max_shard_size,
        base=base,
        text_part=text_part,
    )
    _check_orbax_options(source, config=config, rotary_rows=rotary_rows)
    if allow_unknown_fields and not source.startswith((HUGGING_FACE, ORBAX, GGUF)):
        raise ConfigError(
            "--allow-unknown-fields is for the config.json of hf:FOLDER, and a run is read",
            where="--allow-unknown-fields",
            hint="leave it out",
        )
    if source.startswith((HUGGING_FACE, GGUF)):
        read = source.removeprefix(HUGGING_FACE).removeprefix(GGUF)
        if text_part:
            _check_text_part(read, allow_unknown_fields=allow_unknown_fields)
        run = import_run(
            read,
            target,
            dtype=dtype,
            base=base,
            allow_unknown_fields=allow_unknown_fields,
            kind=CausalLM.Config if text_part else None,
        )
        click.echo(f"{run.directory} contains the model of {read}{_hint(run, target)}")
        return
    if source.startswith(ORBAX):
        read = source.removeprefix(ORBAX)
        assert config is not None
        run, trainer = import_orbax(
            read,
            target,
            config=config,
            dtype=dtype,
            step=step,
            rotary_rows=rotary_rows,
            allow_unknown_fields=allow_unknown_fields,
        )
        hint = _hint(run, target)
        click.echo(f"{run.directory} contains {trainer}'s model of {read}{hint}")
        return
    size = _num_bytes(max_shard_size or "5GB")
    run = load_run(source, step=step, trust_code=trust_code)
    if target.startswith(GGUF):
        written = target.removeprefix(GGUF)
        what = export_gguf(run, written, dtype=dtype, merged=merged)
    else:
        written = target.removeprefix(HUGGING_FACE)
        what = export_run(run, written, dtype=dtype, max_shard_bytes=size, merged=merged)
    click.echo(f"{written} contains step {run.step} of {source} as {what}")


def _hint(run: Any, target: str) -> str:
    """Return what to do with the run next: nothing, where its model writes no text."""
    from axcore.models import MultimodalLM
    from axcore.runs.run import no_text_reason

    command = "generate" if no_text_reason(run.trainer) is None else ""
    if isinstance(run.trainer.model, MultimodalLM):  # prompts have no pictures
        command = "serve"
    return f"; axcore {command} {shlex.quote(target)}" if command else ""


def _check_names(source: str, target: str) -> None:
    if target.startswith(ORBAX):
        raise ConfigError(f"{target} is read, and not written", where="TARGET", hint=_USAGE)
    formats = (HUGGING_FACE, GGUF)
    if source.startswith((*formats, ORBAX)) == target.startswith(formats):
        raise ConfigError(
            f"of {source!r} and {target!r} one names a pretrained checkpoint and the other a run",
            hint=_USAGE,
        )


def _check_options(
    source: str,
    target: str,
    *,
    dtype: Any,
    max_shard_size: str | None,
    base: str | None,
    text_part: bool,
) -> None:
    if dtype in ("q8_0", "q6_k", "q4_k") and not target.startswith(GGUF):
        raise ConfigError(f"{dtype} is a type of GGUF files", where="--dtype", hint=_USAGE)
    if max_shard_size is not None and not target.startswith(HUGGING_FACE):
        raise ConfigError(
            f"--max-shard-size {max_shard_size} is for hf:FOLDER", where="--max-shard-size"
        )
    if base is not None and not source.startswith(HUGGING_FACE):
        raise ConfigError(f"--base {base} is for adapters in hf:FOLDER", where="--base")
    if text_part and not source.startswith(HUGGING_FACE):
        raise ConfigError("--text-part is for hf:FOLDER", where="--text-part", hint=_USAGE)


def _check_text_part(folder: str, *, allow_unknown_fields: bool) -> None:
    """Check that a folder's text part can be read without the rest of it.

    Raises:
        ConfigError: Its family reads all of it.
    """
    from axcore.interop import PretrainedCheckpoint
    from axcore.models import CausalLM

    kind = CausalLM.Config
    there = PretrainedCheckpoint(folder, allow_unknown_fields=allow_unknown_fields, kind=kind)
    if type(there.config) is not kind:
        raise ConfigError(
            f"no family reads the text part of a {there.values['model_type']} alone",
            where="--text-part",
            hint="leave it out, and read all of the model",
        )


def _check_orbax_options(source: str, *, config: str | None, rotary_rows: Any) -> None:
    if source.startswith(ORBAX):
        if config is None:
            raise ConfigError(
                f"{source} does not say what model its arrays are of",
                where="--config",
                hint="name a folder with the model's config.json and tokenizer, or an experiment: "
                "--config FOLDER",
            )
        return
    for option, value in (("--config", config), ("--rotary-rows", rotary_rows)):
        if value is not None:
            raise ConfigError(f"{option} {value} is for orbax:FOLDER", where=option, hint=_USAGE)


def _num_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--max-shard-size is {text!r}", where="--max-shard-size", hint="write 500MB or 5GB"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


@click.command()
@click.argument("method", type=click.Choice(["linear", "slerp", "ties"]))
@click.argument("models", nargs=-1, required=True)
@click.option("--to", "target", required=True, metavar="FOLDER", help="Where to write.")
@click.option("--weights", metavar="W,W,...", help="Of the models.  [default: all the same]")
@click.option("--base", metavar="MODEL", help="The model that ties takes differences from.")
@click.option(
    "--density",
    type=float,
    default=0.2,
    show_default=True,
    help="Share of the differences that ties keeps.",
)
@options.trust_code
def merge(
    method: Any,
    models: tuple[str, ...],
    target: str,
    weights: str | None,
    base: str | None,
    density: float,
    trust_code: bool,
) -> None:
    """Merge MODELS into one, written as a pretrained checkpoint.

    They are folders of pretrained checkpoints, runs, or steps of a run: runs/NAME@STEP. METHOD is
        linear,
    a weighted mean; slerp, between two on a sphere; or ties, by what differs from a base.
    """
    from axcore.runs import merge_models_and_runs

    count = merge_models_and_runs(
        models,
        target,
        base=base,
        trust_code=trust_code,
        method=method,
        weights=_numbers(weights),
        density=density,
    )
    click.echo(f"{target} contains {count} tensors of {len(models)} models, merged by {method}")


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--weights is {text!r}", where="--weights", hint="write numbers: 0.7,0.3"
        ) from None
