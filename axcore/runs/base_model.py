"""`BaseModel`: a run that trains a model further, whatever model it is, and experiments that do so.

axcore train sft --set init_from.path=DIR --set data.source.path=chats.jsonl
axcore train dpo --set init_from.path=DIR --set data.source.path=pairs.jsonl
axcore train reward-model --set init_from.path=DIR --set data.source.path=pairs.jsonl
axcore train multimodal-sft --set init_from.path=DIR --set data.source.folder=pictures
"""

from pathlib import Path
from typing import Any

from axcore.checkpoint import Checkpointer
from axcore.config import REQUIRED, config, evolve, field_names, update_config
from axcore.data import (
    ChatFiles,
    ChatText,
    Data,
    DataLoader,
    ExampleData,
    LabelledChats,
    PreferenceData,
    SampleFiles,
)
from axcore.errors import CheckpointError, ConfigError
from axcore.experiments.tiny import tiny
from axcore.interop import FreshHead, HuggingFace, PretrainedCheckpoint, WeightPlan, WeightSource
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import MultimodalLM
from axcore.module import DTypes
from axcore.runs.export import checkpoint_tokenizer, trainer_config
from axcore.runs.opening import is_published
from axcore.runs.run import Run
from axcore.runs.run_weights import RunWeights
from axcore.tasks import DPO, KTO, RewardModel
from axcore.trainer import Trainer

_STAND_IN = tiny().model
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
        """What a run begins with.

        Args:
            path: A run directory, or a folder that contains a pretrained checkpoint.
            allow_unknown_fields: Whether fields of a checkpoint's `config.json` that could matter
                are ignored.
        """

        path: str = REQUIRED
        allow_unknown_fields: bool = False

        def completed(self, cfg: Any) -> Any:
            """Return a trainer's config with the base's model in it.

            Raises:
                ConfigError: The config's model was changed before its base was known.
                CheckpointError: The path is neither a run nor a pretrained checkpoint.
            """
            if self.path is REQUIRED:
                return cfg
            if cfg.model != _STAND_IN:
                raise ConfigError(
                    "the model was changed before its base was known, and that would be lost",
                    where="model",
                    hint="with_base_model(cfg) of axcore.trainer gives the config to change",
                )
            folder = Path(self.path).expanduser()
            _check_is_there(folder)
            cfg = _of_published(self, cfg) if is_published(folder) else _of_run(self, cfg)
            for edit in self.edits:
                cfg = evolve(cfg, model=edit.changed(cfg.model))
            return cfg

    folder_fields = ("path", "adapters")

    def plan(self, cfg: Any) -> WeightPlan:
        """Refuse: a config that is resolved names the source of the weights itself."""
        raise ConfigError(
            "the base of the run is not resolved",
            where="init_from",
            hint="with_base_model(cfg) of axcore.trainer, or axcore.trainer.resolve",
        )


def _check_is_there(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            "the folder contains neither a run nor a pretrained checkpoint: it has no config.json",
            where=str(folder),
            hint="name a run directory such as runs/tiny, or a folder with config.json and weights",
        )


def _of_run(source: BaseModel.Config, cfg: Any) -> Any:
    base: Any = Run(source.path).opened_config
    data = _with_rows(cfg.data, base.data, source.path)
    weights = RunWeights.Config(**_shared(source, RunWeights.Config))
    return update_config(
        cfg,
        {
            "model": base.model,
            "data": data,
            "init_from": weights,
            "kernels.allow": base.kernels.allow,
        },
    )


def _of_published(source: BaseModel.Config, cfg: Any) -> Any:
    reads_inputs = _has_features(cfg.data)
    published = PretrainedCheckpoint(
        Path(source.path).expanduser(),
        allow_unknown_fields=source.allow_unknown_fields,
        kind=MultimodalLM.Config if reads_inputs else type(cfg.model),
    )
    stored = published.values.get("dtype", published.values.get("torch_dtype"))
    dtypes = DTypes(param="float32", compute="bfloat16" if stored in _SIXTEEN_BITS else "float32")
    model = evolve(published.config, dtypes=dtypes)
    if reads_inputs:
        rows = trainer_config(published).data
    else:
        length = published.max_length or LONGEST
        rows = Data.Config(tokenizer=checkpoint_tokenizer(published), seq_len=length)
    return evolve(
        cfg,
        model=model,
        data=_with_rows(cfg.data, rows, source.path),
        init_from=HuggingFace.Config(**_shared(source, HuggingFace.Config)),
    )


def _has_features(data: Any) -> bool:
    return isinstance(data, ExampleData.Config)


def _with_rows(data: Any, base: Any, where: str) -> Any:
    """Return data whose rows are as the base reads them, with its tokenizer, and no longer.

    Args:
        data: Of the run.
        base: That of the model that it trains further.
        where: The path of that.

    Raises:
        ConfigError: One is of text, and the other of inputs of another kind.
    """
    if not _has_features(data):
        tokenizer = getattr(base, "tokenizer", None)
        if tokenizer is None:
            raise ConfigError("the run has no tokenizer", where=where)
        return evolve(data, tokenizer=tokenizer, seq_len=min(base.seq_len, LONGEST))
    if not _has_features(base):
        raise ConfigError(
            "the base reads text alone, and rows of the data have other inputs",
            where=where,
            hint="name a model that reads pictures or sounds; of text alone: axcore train sft",
        )
    features = {
        name: evolve(one, length=min(one.length, LONGEST), field="json")
        if isinstance(one, ChatText.Config)
        else one
        for name, one in base.features.items()
    }
    return evolve(data, features=features)


def _shared(source: BaseModel.Config, other: type) -> dict[str, Any]:
    """Return the fields of a source that another one has too."""
    return {
        name: getattr(source, name) for name in field_names(source) if name in field_names(other)
    }


def sft() -> Trainer.Config:
    """Return the config of training on conversations; the base brings model and tokenizer."""
    data = Data.Config(
        source=ChatFiles.Config(),
        seq_len=128,
        batch_size=8,
        packing="best_fit",
        repacks_each_epoch=True,
        validation_batches=32,
    )
    return further_training(data, peak=1e-5)


def multimodal_sft() -> Trainer.Config:
    """Return the config of training on conversations about a picture each, or a sound.

    Each is in a folder, with its conversation next to it in a file that ends in `.json`.
    """
    source = SampleFiles.Config(folder="pictures", glob="**/*.png")
    data = ExampleData.Config(source=source, features={}, batch_size=8, validation_batches=32)
    return evolve(further_training(data, peak=1e-5), prompt="")


def dpo() -> Trainer.Config:
    """Return the config of training on pairs of answers; `--modify orpo` names another task."""
    data = PreferenceData.Config(seq_len=128, batch_size=8, validation_batches=32)
    return evolve(further_training(data, peak=1e-6), task=DPO.Config())


def kto() -> Trainer.Config:
    """Return the config of training on answers that were labelled one by one."""
    source = ChatFiles.Config(reads=LabelledChats.Config())
    data = PreferenceData.Config(source=source, seq_len=128, batch_size=8, validation_batches=32)
    return evolve(further_training(data, peak=1e-6), task=KTO.Config())


def reward_model() -> Trainer.Config:
    """Return the config of a reward model of pairs: the base, with a head of one number."""
    data = PreferenceData.Config(
        seq_len=128, batch_size=8, validation_batches=32, has_targets=False
    )
    cfg = evolve(further_training(data, peak=1e-5), task=RewardModel.Config())
    return evolve(cfg, init_from=BaseModel.Config(edits=(FreshHead(),)))


def further_training(data: DataLoader.Config, *, peak: float) -> Trainer.Config:
    """Return the config of training a base further, at a low rate."""
    return Trainer.Config(
        model=_STAND_IN,
        data=data,
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.0),
            schedule=WarmupCosine.Config(peak=peak, warmup_steps=0.04),
        ),
        init_from=BaseModel.Config(),
        max_steps=500,
        eval_every_steps=100,
        checkpoint=Checkpointer.Config(every_steps=100),
        prompt="Hello",
    )
