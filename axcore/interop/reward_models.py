"""Reward models of a family: transformers' `...ForSequenceClassification` with one label."""

import re
from typing import TYPE_CHECKING, Any

import attrs

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.interop.config_map import ConfigEntry, Fields
from axcore.interop.weight_map import Rule, WeightMap
from axcore.layers import ScalarHead

if TYPE_CHECKING:
    from axcore.interop.family import Family

_CLASS = re.compile(r"ForSequenceClassification$")
_HEAD = "head"


def is_reward_model(cfg: Any) -> bool:
    """Whether a model's config ends in a head that gives one number."""
    return isinstance(getattr(cfg, _HEAD, None), ScalarHead.Config)


def is_classifier(architecture: str) -> bool:
    """Whether transformers' class has a head of labels, of which a reward model has one."""
    return bool(_CLASS.search(architecture))


def reward_family(family: "Family") -> "Family":
    """Return the reward models of a family of language models.

    Raises:
        ConfigError: Transformers has none.
    """
    architecture = re.sub("ForCausalLM$", "ForSequenceClassification", family.architecture)
    if architecture == family.architecture:
        raise ConfigError(f"transformers has no reward models of {family.architecture}")
    # Whether the head is the table of embeddings is said of heads over tokens alone.
    entries = tuple(one for one in family.config if getattr(one, "path", "") != _HEAD)
    return attrs.evolve(
        family,
        architecture=architecture,
        template=lambda: evolve(family.template(), head=ScalarHead.Config()),
        config=(*entries, _OneLabel()),
        weights=lambda cfg: _with_score(family.weights(cfg)),
        gguf=None,
    )


def _with_score(weights: WeightMap) -> WeightMap:
    """Return a weight map whose head is named `score`, as classifiers have it."""
    others = (rule for rule in weights if not rule.axcore[0].startswith(f"{_HEAD}."))
    return (*others, Rule((f"{_HEAD}.weight",), ("score.weight",)))


class _OneLabel(ConfigEntry):
    """The fields of a classifier, which must have one label."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config.

        Raises:
            ConfigError: There are several labels.
        """
        names = fields.take("id2label", None)
        # Transformers leaves the labels out of files where they are the two of its default.
        count = fields.take("num_labels", 2 if names is None else len(names))
        for name in ("label2id", "problem_type", "tie_word_embeddings"):
            fields.take(name, None)
        if count != 1:
            raise ConfigError(
                f"config.json has a classifier of {count} labels; a reward model has one",
                where="id2label",
                hint="name the folder of a language model or of a reward model",
            )
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields of one label."""
        return {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
