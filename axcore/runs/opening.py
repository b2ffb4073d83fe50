"""`open_model`: a run or a pretrained checkpoint, ready for an engine; `merge_models_and_runs`."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import jax

from axcore.config import evolve
from axcore.config.json_files import read_json_file
from axcore.data import Tokenizer
from axcore.distributed import process_count
from axcore.errors import CheckpointError, ConfigError
from axcore.inference import (
    AnyEngine,
    Draft,
    EngineConfig,
    Generation,
    Generator,
    open_engine,
    serving_mesh,
)
from axcore.inference.placement import Placement
from axcore.interop import adapter_format, is_gguf
from axcore.interop.merging import merge_models
from axcore.modifiers import changes_compute_dtype, with_changes
from axcore.ops import use_policy
from axcore.parallel import MeshShape
from axcore.runs.export import export_run, open_checkpoint
from axcore.runs.run import Run, load_run, no_text_reason

_LOG = logging.getLogger(__name__)

_ADAPTERS = "adapter_config.json"


@attrs.frozen(kw_only=True)
class OpenedModel:
    """A model, its state and its tokenizer.

    Args:
        name: Of its directory.
        trainer: What holds the model and its data.
        model: The model, changed as it was asked for.
        state: Of the model.
        step: The checkpoint that the state is from; None of a pretrained checkpoint.
        run: Where newer checkpoints may appear; None of a pretrained checkpoint.
    """

    name: str
    trainer: Any
    model: Any
    state: Any
    step: int | None = None
    run: Run | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """What the model was trained with."""
        found: Tokenizer = self.trainer.data.tokenizer
        return found

    @property
    def length(self) -> int:
        """Tokens of the longest text that the model was trained with."""
        return int(self.trainer.config.data.seq_len)

    def samples(
        self, prompt: str, num_samples: int, *, max_tokens: int = 200, **options: Any
    ) -> tuple[Generation, ...]:
        """Return several continuations; the options are those of `Generator.generate`."""
        generator = Generator(self.model, self.state, self.tokenizer, context=self.length)
        options = {"num_samples": num_samples, "max_tokens": max_tokens, **options}
        with use_policy(self.trainer.compiler.kernel_policy):
            return generator.generate(prompt, **options)


def engine_for(
    opened: OpenedModel,
    cfg: EngineConfig,
    *,
    mesh: MeshShape | None = None,
    tokenizer: Tokenizer | None = None,
    draft: Draft | None = None,
) -> tuple[AnyEngine, Placement]:
    """Return an engine for an opened model, and where its weights are; the engine is to be closed.

    Args:
        opened: What `open_model` returned.
        cfg: The engine's; its `max_length` is by default what the model was trained with.
        mesh: Sizes by mesh axis, one of which may be -1; None takes as few devices as hold the
            weights in half of their memory, or all of them where there are several processes.
        tokenizer: In the place of the model's own.
        draft: See `Engine`.

    Raises:
        ConfigError: The config does not fit the model, or itself.
        ShardingError: The model does not divide over the mesh, or there are too few devices.
    """
    cfg = evolve(cfg, max_length=cfg.max_length or opened.length)
    policy = opened.trainer.compiler.kernel_policy
    # The policy in which the trainer compiles, so that the same kernels are chosen.
    with use_policy(policy):
        shape = mesh
        if not shape:
            # Where there are several processes, somebody started them for one model.
            is_alone = process_count() == 1
            found = serving_mesh(opened.model, cfg, policy.hardware, jax.local_device_count())
            shape = found if is_alone else {"model": -1}
        placement = Placement.of(opened.model, shape)
        if cfg.compute is None and changes_compute_dtype(opened.model.config, policy.hardware):
            _LOG.info(
                "layers that were trained in 16 bits compute in 32, as XLA is slow in 16 on %s; "
                "--set engine.compute=bfloat16 keeps 16",
                policy.hardware,
            )
        engine = open_engine(
            opened.model,
            opened.state,
            tokenizer or opened.tokenizer,
            cfg,
            mesh=placement.mesh,
            draft=draft,
        )
    return engine, placement


def open_model(
    directory: Path | str,
    *,
    step: int | None = None,
    trust_code: bool = False,
    changes: Sequence[str] = (),
    on_host: bool = False,
    allow_unknown_fields: bool = False,
) -> OpenedModel:
    """Return the model of a run directory, or of a folder of a pretrained checkpoint.

    Args:
        directory: Either of them, or a GGUF file.
        step: The checkpoint of a run to use; by default the newest.
        trust_code: Whether code that came with a run is run to open it.
        changes: Named changes of the model that leave its parameters as they are, such as
            `kv_cache(dtype=int8)`.
        on_host: Whether arrays of a run stay in host memory, and those of a pretrained checkpoint
            in its files, for an engine to take one by one.
        allow_unknown_fields: Whether fields of a checkpoint's `config.json` that could matter are
            ignored, with a warning.

    Raises:
        CheckpointError: It is neither, or has no checkpoint.
        ConfigError: The model writes no text, or a published one was asked for a step.
    """
    path = Path(directory).expanduser()
    if not (path.is_dir() or is_published(path)):
        raise CheckpointError(
            "there is no such directory",
            where=str(directory),
            hint="name a run, such as runs/tiny, or the folder of a pretrained checkpoint",
        )
    name = path.stem if is_gguf(path) else path.resolve().name
    if is_published(path):
        if step is not None:
            raise ConfigError("a pretrained checkpoint has no steps", where="--step")
        trainer, state = open_checkpoint(
            path, on_host=on_host, allow_unknown_fields=allow_unknown_fields
        )
        _check(trainer)
        model = _changed_model(trainer, changes)
        return OpenedModel(name=name, trainer=trainer, model=model, state=state)
    if allow_unknown_fields:
        raise ConfigError(
            "the directory is a run, whose config has no unknown fields",
            where="--allow-unknown-fields",
            hint="leave it out; it is for the config.json of a pretrained checkpoint",
        )
    run = load_run(path, step=step, trust_code=trust_code)
    _check(run.trainer)
    restored = run.restored(step, on_host=on_host)  # the run keeps none of it
    return OpenedModel(
        name=name,
        trainer=run.trainer,
        model=_changed_model(run.trainer, changes),
        state=run.trainer.step.own_part(restored.state),
        step=restored.step,
        run=run if step is None else None,
    )


def _changed_model(trainer: Any, changes: Sequence[str]) -> Any:
    """Return the trainer's model, or another one of the same parameters."""
    if not changes:
        return trainer.model
    model = with_changes(trainer.config, changes, trainer.hardware).model.build()
    before, after = (_shapes(one) for one in (trainer.model, model))
    if before != after:
        differing = sorted(before ^ after)[:3]
        raise ConfigError(
            "the changes give the model other parameters: " + ", ".join(map(str, differing)),
            where="--modify",
            hint="change how the model is trained with axcore train, or weights where it serves "
            "with --set engine.weights=int8",
        )
    return model


def _shapes(model: Any) -> set[tuple[str, tuple[int, ...]]]:
    return {(spec.name, spec.shape) for spec in jax.tree.leaves(model.param_specs())}


def _check(trainer: Any) -> None:
    reason = no_text_reason(trainer)
    if reason is not None:
        raise ConfigError(
            f"the model writes no text: {reason}",
            where="model",
            hint="models of text have it, such as that of: axcore train tiny",
        )


def is_published(path: Path) -> bool:
    """Whether a folder's config is that of transformers, not of a run; a GGUF file is published."""
    if is_gguf(path):
        return True
    if (path / _ADAPTERS).is_file():
        return True
    try:
        found = read_json_file(path / "config.json")
    except (OSError, ValueError):
        return False  # opening it as a run says what is wrong
    return isinstance(found, dict) and ("model_type" in found or "architectures" in found)


_AT_STEP = re.compile(r"(?P<run>.+)@(?P<step>\d+)")


def merge_models_and_runs(
    models: Sequence[str],
    target: Path | str,
    *,
    base: str | None = None,
    trust_code: bool = False,
    **settings: Any,
) -> int:
    """Write the merge of models into a new folder; return how many tensors it has.

    Runs are written as pretrained checkpoints first, with their adapters merged.
    These folders are next to the target, and are removed in the end.

    Args:
        models: Folders of checkpoints, run directories, or steps of runs: `runs/NAME@STEP`.
        target: As `merge_models` takes it.
        base: As `models`.
        trust_code: Whether code that came with a run is run to open it.
        settings: Of `merge_models`.

    Raises:
        CheckpointError: What is named is not a model, or models differ.
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
    """Return the folder of a pretrained checkpoint; what is a run is written there first."""
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
