"""`merge_models_and_runs`: merges runs and steps of runs as `axcore.interop` merges models."""

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from axcore.errors import CheckpointError
from axcore.interop.adapters import adapter_format
from axcore.interop.merging import merge_models
from axcore.runs.hugging_face import export_run
from axcore.runs.opening import is_published
from axcore.runs.run import load_run

_AT_STEP = re.compile(r"(?P<run>.+)@(?P<step>\d+)")


def merge_models_and_runs(
    models: Sequence[str],
    target: Path | str,
    *,
    base: str | None = None,
    trust_code: bool = False,
    **settings: Any,
) -> int:
    """Writes the merge of models into a new folder; returns how many tensors it has.

    Runs are written as pretrained checkpoints first, with their adapters merged.
    These folders lie beside the target, and are removed in the end.

    Args:
        models: Folders of checkpoints, run directories, or steps of runs: `runs/NAME@STEP`.
        target: As `merge_models` takes it.
        base: As `models`.
        trust_code: Whether code that came with a run is run to open it.
        settings: Of `merge_models`.

    Raises:
        CheckpointError: What is named is no model, or models differ.
        ConfigError: No family of pretrained checkpoints has a run's model, or settings do not fit.
    """
    beside = Path(target).expanduser().absolute().parent
    beside.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=beside, prefix=".merging-") as written:

        def published(model: str) -> Path:
            return _published(model, Path(written), trust_code=trust_code)

        folders = [published(model) for model in models]
        wanted = None if base is None else published(base)
        return merge_models(folders, target, base=wanted, **settings)


def _published(model: str, written: Path, *, trust_code: bool) -> Path:
    """Returns the folder of a pretrained checkpoint; what is a run is written there first."""
    path, step = Path(model).expanduser(), None
    if not path.is_dir() and (match := _AT_STEP.fullmatch(model)):
        path, step = Path(match["run"]).expanduser(), int(match["step"])
    if not path.is_dir():
        raise CheckpointError(
            "there is no such directory",
            where=model,
            hint="name a checkpoint's folder, a run, or a step of a run: runs/NAME@STEP",
        )
    if is_published(path):
        return path
    run = load_run(path, step=step, trust_code=trust_code)
    folder = written / str(len(list(written.iterdir())))
    has_adapters = adapter_format(run.trainer.config.model) is not None
    export_run(run, folder, merged=has_adapters)
    return folder
