"""Records of experiments, of what a model is trained and evaluated on, and of data."""

from typing import ClassVar

import attrs

from axcore.registration import Record, Ref, a_name, of_type, record


@record(hook="experiments")
@attrs.frozen(kw_only=True)
class Experiment(Record):
    """A named, complete training config.

    Args:
        name: As `axcore train NAME` takes it.
        fn: A function of no arguments that returns the trainer's config.
        summary: One line, for the list of experiments.

    Example:
        @hook.experiments
        def experiments():
            yield Experiment(name="acme_tiny", fn=Ref("axl_acme.experiments:tiny"),
                             summary="A small model on Acme chips")
    """

    kind: ClassVar[str] = "experiment"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="training_tasks")
@attrs.frozen(kw_only=True)
class TrainingTask(Record):
    """An objective around a model, which users ask for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.tasks.Task`.
        summary: One line.

    Example:
        @hook.training_tasks
        def training_tasks():
            yield TrainingTask(name="acme_margin", config=Ref("axl_acme.margin:Margin.Config"),
                               summary="Answers that people preferred, by a margin")
    """

    kind: ClassVar[str] = "training task"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="evaluation_tasks")
@attrs.frozen(kw_only=True)
class EvaluationTask(Record):
    """Samples and how answers to them are scored, which `axcore evaluate --tasks` asks for by name.

    Args:
        name: As a user asks for it.
        config: A function without arguments that returns the config of an
            `axcore.evaluation.ScoredTask`, or its Config class.
        summary: One line.

    Example:
        @hook.evaluation_tasks
        def evaluation_tasks():
            yield EvaluationTask(name="acme_capitals", config=Ref("axl_acme.capitals:capitals"),
                                 summary="Capitals of countries, as multiple choice")
    """

    kind: ClassVar[str] = "evaluation task"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="data_sources")
@attrs.frozen(kw_only=True)
class DataSource(Record):
    """A source of text to train on, which users ask for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Source`.
        summary: One line.

    Example:
        @hook.data_sources
        def data_sources():
            yield DataSource(name="acme_mail", config=Ref("axl_acme.mail:Mail.Config"),
                             summary="Messages of a mailbox")
    """

    kind: ClassVar[str] = "data source"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="rewards")
@attrs.frozen(kw_only=True)
class RewardFunction(Record):
    """What a completion is worth, which `--set data.rewards=NAME` asks for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.rewards.Reward`.
        summary: One line.

    Example:
        @hook.rewards
        def rewards():
            yield RewardFunction(name="acme_rhymes", config=Ref("axl_acme.rhymes:Rhymes.Config"),
                                 summary="The share of lines that rhyme")
    """

    kind: ClassVar[str] = "reward"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="environments")
@attrs.frozen(kw_only=True)
class RolloutEnvironment(Record):
    """What answers a policy between its turns, which `--set data.environment=NAME` asks for.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.environments.Environment`.
        summary: One line.

    Example:
        @hook.environments
        def environments():
            yield RolloutEnvironment(name="acme_maze", config=Ref("axl_acme.maze:Maze.Config"),
                                     summary="A maze, described in words")
    """

    kind: ClassVar[str] = "environment"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="tokenizers")
@attrs.frozen(kw_only=True)
class DataTokenizer(Record):
    """A tokenizer, which users ask for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Tokenizer`.
        summary: One line.

    Example:
        @hook.tokenizers
        def tokenizers():
            yield DataTokenizer(name="acme_letters", config=Ref("axl_acme.text:Letters.Config"),
                                summary="One token a letter")
    """

    kind: ClassVar[str] = "tokenizer"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="data_transforms")
@attrs.frozen(kw_only=True)
class DataTransform(Record):
    """A transform of documents, which users add to their sources by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Transform`.
        summary: One line.

    Example:
        @hook.data_transforms
        def data_transforms():
            yield DataTransform(name="acme_clean", config=Ref("axl_acme.clean:Clean.Config"),
                                summary="Takes signatures out of messages")
    """

    kind: ClassVar[str] = "data transform"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
