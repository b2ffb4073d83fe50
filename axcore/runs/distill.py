"""`DistillFrom`: a run that learns from the model of another run, or from a pretrained checkpoint.

axcore train sft --modify 'distill(teacher=RUN)' --set init_from.path=RUN2 ...
axcore train grpo --modify 'on_policy_distill(teacher=RUN)' --set init_from.path=RUN2 ...
"""

from pathlib import Path
from typing import Any

from axcore.config import REQUIRED, PositiveFloat, UnitInterval, config, evolve, field_names
from axcore.data import Data
from axcore.data.teacher_cache import TaughtData, read_manifest
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import HuggingFace, PretrainedCheckpoint
from axcore.module import DTypes
from axcore.plugins import Hardware
from axcore.runs.export import checkpoint_tokenizer
from axcore.runs.opening import is_published
from axcore.runs.run import Run
from axcore.runs.run_weights import RunWeights
from axcore.tasks import Distill, DistillTopK, FrozenModel, OnPolicyDistill, PolicyGradient


@config
class DistillFrom:
    """Learn from the next-token probabilities of a teacher, which is in memory and frozen.

    Args:
        teacher: A run directory, or a folder that contains a pretrained checkpoint.
        beta: Which divergence: 0 is KL(teacher, student), 1 is KL(student, teacher), between are
            generalized Jensen-Shannon divergences.
        temperature: Both models' logits are divided by it.
        cross_entropy_weight: Share of the data's own cross-entropy in the loss.
        allow_unknown_fields: Whether fields of a checkpoint's `config.json` that could matter are
            ignored.
    """

    teacher: str = REQUIRED
    beta: UnitInterval = 0.0
    temperature: PositiveFloat = 1.0
    cross_entropy_weight: UnitInterval = 0.0
    allow_unknown_fields: bool = False

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose task is to learn from the teacher.

        Raises:
            ConfigError: The config has a task already, or the teacher has other tokens.
            CheckpointError: The teacher is neither a run nor a pretrained checkpoint.
        """
        _check_has_no_task(cfg)
        teacher, tokenizer = _teacher(
            self.teacher, type(cfg.model), allow_unknown_fields=self.allow_unknown_fields
        )
        check_same_tokens(getattr(cfg.data, "tokenizer", None), tokenizer, where=self.teacher)
        task = Distill.Config(
            teacher=teacher,
            beta=self.beta,
            temperature=self.temperature,
            cross_entropy_weight=self.cross_entropy_weight,
        )
        return evolve(cfg, task=task)


@config
class DistillFromCache:
    """Learn from the likeliest tokens of a teacher, which `axcore data teach` wrote to a folder.

    Args:
        teacher_cache: The folder.
        beta: As of `DistillFrom`.
        cross_entropy_weight: Share of the data's own cross-entropy in the loss.
    """

    teacher_cache: str = REQUIRED
    beta: UnitInterval = 0.0
    cross_entropy_weight: UnitInterval = 0.0

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose batches have the teacher's tokens.

        Raises:
            ConfigError: The config has a task already, or other data than packed documents.
            DataError: The folder is not a teacher's cache.
        """
        _check_has_no_task(cfg)
        if type(cfg.data) is not Data.Config:
            raise ConfigError(
                f"the data is {type(cfg.data).__qualname__}, and a teacher's cache is of packed "
                "documents",
                where="data",
                hint="distill on axcore.data.Data, such as that of: axcore train sft",
            )
        shared = {name: getattr(cfg.data, name) for name in field_names(cfg.data)}
        top_k = read_manifest(self.teacher_cache)["top_k"]
        data = TaughtData.Config(**shared, teacher_cache=self.teacher_cache, top_k=top_k)
        task = DistillTopK.Config(beta=self.beta, cross_entropy_weight=self.cross_entropy_weight)
        return evolve(cfg, data=data, task=task)


@config
class OnPolicyDistillFrom:
    """Learn from a teacher at each token of completions that the model in training samples itself.

    Rewards of the run are measured, and not learnt from.

    Args:
        teacher: A run directory, or a folder that contains a pretrained checkpoint.
        allow_unknown_fields: As of `DistillFrom`.
    """

    teacher: str = REQUIRED
    allow_unknown_fields: bool = False

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose task is to learn from the teacher.

        Raises:
            ConfigError: The config trains on no rollouts, or the teacher has other tokens.
            CheckpointError: The teacher is neither a run nor a pretrained checkpoint.
        """
        if not isinstance(cfg.task, PolicyGradient.Config):
            task = "no task" if cfg.task is None else type(cfg.task).__qualname__
            raise ConfigError(
                f"the config has {task}, and only rollouts have tokens that the model sampled",
                where="task",
                hint="distill one that has, such as that of: axcore train grpo; or on given texts: "
                "--modify 'distill(teacher=DIR)'",
            )
        teacher, tokenizer = _teacher(
            self.teacher, type(cfg.model), allow_unknown_fields=self.allow_unknown_fields
        )
        check_same_tokens(cfg.data.tokenizer, tokenizer, where=self.teacher)
        return evolve(cfg, task=OnPolicyDistill.Config(teacher=teacher))


def _check_has_no_task(cfg: Any) -> None:
    if cfg.task is not None:
        raise ConfigError(
            f"the config has the task {type(cfg.task).__qualname__} already",
            where="task",
            hint="distill a model of text, such as that of: axcore train sft",
        )


def _teacher(
    path: str, kind: type, *, allow_unknown_fields: bool
) -> tuple[FrozenModel.Config, Any]:
    """Return the config of a model that is only read, and that of its tokenizer.

    Args:
        path: Of a run or a pretrained checkpoint.
        kind: The Config class of the student.
        allow_unknown_fields: As of `DistillFrom`.

    Raises:
        CheckpointError: The path is neither a run nor a pretrained checkpoint.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            "the teacher is neither a run nor a pretrained checkpoint: it has no config.json",
            where=path,
            hint="name a run directory such as runs/tiny, or a folder with config.json and weights",
        )
    if not is_published(folder):
        run: Any = Run(folder).opened_config
        source = RunWeights.Config(path=path)
        return FrozenModel.Config(model=run.model, init_from=source), _tokenizer(run.data)
    checkpoint = PretrainedCheckpoint(folder, allow_unknown_fields=allow_unknown_fields, kind=kind)
    # As it is stored: no optimizer needs more digits of weights that never change.
    stored = DTypes(param=checkpoint.dtype, compute=checkpoint.dtype)
    model = evolve(checkpoint.config, dtypes=stored)
    weights = HuggingFace.Config(path=path, allow_unknown_fields=allow_unknown_fields)
    return FrozenModel.Config(model=model, init_from=weights), checkpoint_tokenizer(checkpoint)


def _tokenizer(data: Any) -> Any:
    return getattr(data, "tokenizer", None)


def check_same_tokens(student: Any, teacher: Any, *, where: str) -> None:
    """Check that two configs are of tokenizers whose tokens have the same numbers.

    Raises:
        ConfigError: They are not; or one of the models is not of text.
    """
    if student is None or teacher is None:
        raise ConfigError(
            f"the {'student' if student is None else 'teacher'} has no tokenizer",
            where=where,
            hint="distill one model of text from another",
        )
    if student == teacher:
        return
    own, other = student.build(), teacher.build()
    if own.vocab_size != other.vocab_size:
        raise _other_tokens(f"{own.vocab_size:,} and {other.vocab_size:,} tokens", where)
    for number in range(own.vocab_size):
        texts = own.token_bytes(number), other.token_bytes(number)
        if texts[0] != texts[1]:
            raise _other_tokens(f"{texts[0]!r} and {texts[1]!r} as token {number}", where)


def _other_tokens(what: str, where: str) -> ConfigError:
    return ConfigError(
        f"the tokenizers of student and teacher have {what}; expected the same tokens",
        where=where,
        hint="take a teacher with the student's tokenizer; with another one, train on the answers "
        "that it writes: axcore generate",
    )
