"""`BaseModel`: a run that trains a model further, whatever model it is."""

from pathlib import Path
from typing import Any

from axcore.config import REQUIRED, config, evolve, field_names
from axcore.errors import CheckpointError, ConfigError
from axcore.experiments.tiny import tiny
from axcore.interop import HuggingFace, PretrainedCheckpoint, WeightPlan, WeightSource
from axcore.module import DTypes
from axcore.runs.hugging_face import checkpoint_tokenizer
from axcore.runs.opening import is_published
from axcore.runs.run import Run
from axcore.runs.run_weights import RunWeights

STAND_IN = tiny().model
"""The model of an experiment whose base is not known yet."""

_SIXTEEN_BITS = ("bfloat16", "float16")

LONGEST = 2048
"""Tokens of a row at most, where the base takes longer ones."""


class BaseModel(WeightSource):
    """The model of a run, or a published one, to be trained further.

    Unlike other sources of weights it decides the model, the tokenizer and the length of rows of
    the config that it is in, when that is resolved; then it is replaced by the source that reads
    the weights.
    """

    @config
    class Config(WeightSource.Config):
        """Describes what a run begins with.

        Args:
            path: A run directory, or a folder that holds a pretrained checkpoint.
            allow_unknown_fields: Whether fields of a checkpoint's `config.json` that could matter
                are ignored.
        """

        path: str = REQUIRED
        allow_unknown_fields: bool = False

        def completed(self, cfg: Any) -> Any:
            """Returns a trainer's config with the base's model in it.

            Raises:
                ConfigError: The config's model was changed before its base was known.
                CheckpointError: The path is neither a run nor a pretrained checkpoint.
            """
            if self.path is REQUIRED:
                return cfg
            if cfg.model != STAND_IN:
                raise ConfigError(
                    "the model was changed before its base was known, and that would be lost",
                    where="model",
                    hint="with_base_model(cfg) of axcore.trainer gives the config to change",
                )
            folder = Path(self.path).expanduser()
            _check_is_there(folder)
            return _of_published(self, cfg) if is_published(folder) else _of_run(self, cfg)

    folder_fields = ("path", "adapters")

    def plan(self, cfg: Any) -> WeightPlan:
        """Refuses: a config that is resolved names the source of the weights itself."""
        raise ConfigError(
            "the base of the run is not resolved",
            where="init_from",
            hint="with_base_model(cfg) of axcore.trainer, or axcore.trainer.resolve",
        )


def _check_is_there(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            "the folder holds neither a run nor a pretrained checkpoint: it has no config.json",
            where=str(folder),
            hint="name a run directory such as runs/tiny, or a folder with config.json and weights",
        )


def _of_run(source: BaseModel.Config, cfg: Any) -> Any:
    base: Any = Run(source.path).opened_config
    tokenizer = getattr(base.data, "tokenizer", None)
    if tokenizer is None:
        raise ConfigError("the run has no tokenizer", where=source.path)
    data = evolve(cfg.data, tokenizer=tokenizer, seq_len=min(base.data.seq_len, LONGEST))
    weights = RunWeights.Config(**_shared(source, RunWeights.Config))
    return evolve(
        cfg, model=base.model, data=data, init_from=weights, allow_kernels=base.allow_kernels
    )


def _of_published(source: BaseModel.Config, cfg: Any) -> Any:
    published = PretrainedCheckpoint(
        Path(source.path).expanduser(), allow_unknown_fields=source.allow_unknown_fields
    )
    stored = published.values.get("dtype", published.values.get("torch_dtype"))
    dtypes = DTypes(param="float32", compute="bfloat16" if stored in _SIXTEEN_BITS else "float32")
    model = evolve(published.config, dtypes=dtypes)
    length = min(published.max_length or LONGEST, LONGEST)
    data = evolve(cfg.data, tokenizer=checkpoint_tokenizer(published), seq_len=length)
    return evolve(
        cfg,
        model=model,
        data=data,
        init_from=HuggingFace.Config(**_shared(source, HuggingFace.Config)),
    )


def _shared(source: BaseModel.Config, other: type) -> dict[str, Any]:
    """Returns the fields of a source that another one has too."""
    return {
        name: getattr(source, name) for name in field_names(source) if name in field_names(other)
    }
