"""Config maps: `config.json` to a model's config and back, a field at a time.

A map is a tuple of entries. Each knows the fields that it reads, where their values are in the
model's config, and how to write them again. A field that no entry reads and that is not known to
change no number is an error: ignoring it would make another model.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from axcore.config import REQUIRED, replace_config, update_config, walk
from axcore.config.paths import format_path, matches_below, parse_pattern
from axcore.errors import ConfigError

Json = Mapping[str, Any]


class Fields:
    """The fields of a `config.json`, and which of them were read."""

    def __init__(self, values: Json) -> None:
        self.values = dict(values)
        self.read: set[str] = set()

    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """Return a field's value.

        Raises:
            ConfigError: It is absent, and pretrained checkpoints never leave it out.
        """
        self.read.add(name)
        value = self.values.get(name, default)
        if value is REQUIRED:
            raise ConfigError(f"config.json has no {name}", hint=f"add {name} to it")
        return value

    def unread(self) -> dict[str, Any]:
        """Return the fields that nothing has read."""
        return {name: value for name, value in self.values.items() if name not in self.read}


class ConfigEntry(ABC):
    """One or more fields of `config.json`, and what they are in a model's config."""

    @abstractmethod
    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with what the fields say."""

    @abstractmethod
    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields that say what a config has.

        Raises:
            ConfigError: They cannot say it.
        """

    def normal(self, cfg: Any) -> Any:
        """Return a config that says the same in the way in which `read` does."""
        return cfg


def _as_is(value: Any) -> Any:
    return value


@attrs.frozen
class Field(ConfigEntry):
    """A field that is a value of the model's config.

    Args:
        name: Of the field.
        paths: Paths or globs of the config, all of which have the value.
        alias: Another name that it is read by.
        default: What the field's absence means; required where left out.
        to_axcore: From the field's value to the config's.
        to_hf: Its inverse.
    """

    name: str
    paths: tuple[str, ...]
    alias: str = attrs.field(default="", kw_only=True)
    default: Any = attrs.field(default=REQUIRED, kw_only=True)
    to_axcore: Callable[[Any], Any] = attrs.field(default=_as_is, kw_only=True)
    to_hf: Callable[[Any], Any] = attrs.field(default=_as_is, kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the value at every path."""
        name = self.name if self.name in fields.values or not self.alias else self.alias
        value = fields.take(name, self.default)
        try:
            value = self.to_axcore(value)
        except (TypeError, ValueError, KeyError, IndexError):
            raise ConfigError(
                f"config.json has {name}={value!r}, which is not a valid value",
                where=name,
                hint="compare it with the file that was published",
            ) from None
        return update_config(cfg, dict.fromkeys(self.paths, value))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {self.name: self.to_hf(common_value(cfg, *self.paths))}


@attrs.frozen
class DefaultFrom(ConfigEntry):
    """A field whose default follows from other fields; the config then has None.

    Args:
        name: Of the field.
        path: Path or glob of the config.
        implied: From a config to the value that None means.
        to_axcore: From the field's value to the config's.
        to_hf: Its inverse.
        default: What the field's absence means, in `config.json`; None for the implied value.
    """

    name: str
    path: str
    implied: Callable[[Any], Any]
    to_axcore: Callable[[Any], Any] = attrs.field(default=_as_is, kw_only=True)
    to_hf: Callable[[Any], Any] = attrs.field(default=_as_is, kw_only=True)
    default: Any = attrs.field(default=None, kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the value, or None where it is the implied one."""
        value = fields.take(self.name, self.default)
        axcore = None if value is None else self.to_axcore(value)
        return self.normal(update_config(cfg, {self.path: axcore}))

    def normal(self, cfg: Any) -> Any:
        """Return a config that leaves out the implied value."""
        is_implied = common_value(cfg, self.path) == self.implied(cfg)
        return update_config(cfg, {self.path: None}) if is_implied else cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field, always with its value."""
        value = common_value(cfg, self.path)
        return {self.name: self.to_hf(self.implied(cfg) if value is None else value)}


@attrs.frozen
class Choice(ConfigEntry):
    """A field whose value says which module is in a place.

    Args:
        name: Of the field.
        path: The place.
        options: The module's config by value.
        default: What the field's absence means.
    """

    name: str
    path: str
    options: Mapping[Any, Any]
    default: Any

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the module in its place."""
        value = fields.take(self.name, self.default)
        if value not in self.options:
            raise _unsupported(self.name, value, *self.options)
        return replace_config(cfg, lambda _: True, self.options[value], at=self.path)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        found = common_value(cfg, self.path)
        for value, option in self.options.items():
            if type(option) is type(found):
                return {self.name: value}
        raise ConfigError(f"{self.path} is a {type(found).__qualname__}", where=self.path)


@attrs.frozen
class MustBe(ConfigEntry):
    """A field that must have one of these values; the first is what the model here does.

    Args:
        name: Of the field.
        values: Those that mean what the model does.
        is_written: Whether exports have the field.
    """

    name: str
    values: tuple[Any, ...]
    is_written: bool = attrs.field(default=True, kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config.

        Raises:
            ConfigError: The field has another value.
        """
        value = fields.take(self.name, self.values[0])
        if value not in self.values:
            raise _unsupported(self.name, value, *self.values)
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {self.name: self.values[0]} if self.is_written else {}


@attrs.frozen
class Derived(ConfigEntry):
    """A field that repeats what others say; another value is an error.

    Args:
        name: Of the field.
        value: From a config to the value that the field must have.
        is_written: Whether exports have the field.
    """

    name: str
    value: Callable[[Any], Any]
    is_written: bool = attrs.field(default=True, kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config.

        Raises:
            ConfigError: The field has another value.
        """
        value, wanted = fields.take(self.name, None), self.value(cfg)
        if value is not None and value != wanted:
            raise _unsupported(self.name, value, wanted)
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {self.name: self.value(cfg)} if self.is_written else {}


@attrs.frozen
class Computed(ConfigEntry):
    """A value of the config that follows from others, of which `config.json` has no field.

    Args:
        path: Path or glob of the config.
        value: From a config with all that was read before to the value.
    """

    path: str
    value: Callable[[Any], Any]

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the value."""
        return update_config(cfg, {self.path: self.value(cfg)})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return no field; that the value is as computed is seen when the fields are read."""
        return {}


@attrs.frozen
class EveryLayer(ConfigEntry):
    """A field with a value for each layer, all of which must be this one; exports leave it out.

    Args:
        name: Of the field.
        value: What the model does in every layer.
    """

    name: str
    value: Any

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config.

        Raises:
            ConfigError: A layer has another value.
        """
        for value in fields.take(self.name, None) or ():
            if value != self.value:
                raise _unsupported(self.name, value, self.value)
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return no field."""
        return {}


class Labels(ConfigEntry):
    """`id2label`, of which the number of classes counts alone; exports have the names again."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with as many classes as there are labels."""
        # Looked at and not taken: what nothing takes is kept for exports.
        names = fields.values.get("id2label")
        given = fields.take("num_labels", None)
        # transformers writes no labels where there are two, its default.
        return update_config(cfg, {"num_classes": len(names) if names else given or 2})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields, with the names that transformers gives where there are none."""
        numbers = range(cfg.num_classes)
        return {
            "id2label": {str(n): f"LABEL_{n}" for n in numbers},
            "label2id": {f"LABEL_{n}": n for n in numbers},
        }


def common_value(cfg: Any, *paths: str) -> Any:
    """Return the value that a config has at all places that paths or globs name.

    Raises:
        ConfigError: There is no such place, or they differ.
    """
    patterns = [parse_pattern(path) for path in paths]
    found: dict[str, Any] = {}
    for steps, node in walk(cfg):
        for pattern in patterns if steps else ():
            if matches_below(pattern, steps):
                found[format_path(steps)] = node
    values = list(found.values())
    if not values:
        raise ConfigError(f"there is no {' and no '.join(paths)}")
    for path, value in found.items():
        if value != values[0]:
            first = next(iter(found))
            raise ConfigError(f"{path} is {value!r} and {first} {values[0]!r}", where=path)
    return values[0]


def _unsupported(name: str, value: Any, *known: Any) -> ConfigError:
    return ConfigError(
        f"config.json has {name}={value!r}, of which axcore has no model; "
        f"it knows {', '.join(map(repr, known))}",
        where=name,
        hint="name a folder whose config.json has one of these; this value makes another model",
    )


_GENERATION = """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
    return_dict_in_generate suppress_tokens temperature top_k top_p typical_p
"""
_LIBRARY = """
    architectures auto_map chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id dtype finetuning_task id2label is_decoder is_encoder_decoder label2id
    max_position_embeddings model_type num_labels output_attentions output_hidden_states
    output_router_logits prefix problem_type return_dict sep_token_id task_specific_params
    tf_legacy_loss tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers_version
    use_bfloat16
"""
_TRAINING = "attention_dropout initializer_range router_jitter_noise"
_TOKENS = "bos_token_id eos_token_id pad_token_id"
IRRELEVANT = frozenset(
    f"_name_or_path pretraining_tp quantization_config use_cache {_TOKENS} {_TRAINING} {_LIBRARY} "
    f"{_GENERATION}".split()
)
"""Fields of any family that rotates positions, which change no number of a forward pass.

Quantized weights are dequantized as they are read. What texts are generated with does not belong to
the model here.
"""

_WITHOUT_READER = (
    # The library's own state: _attn_implementation, _experts_implementation, _commit_hash.
    r"_.+",
    # Written by tools and other libraries.
    r"transformers\.js_config|unsloth_\w+|is_llama_config|predict_special_tokens|output_past",
    # Training alone: rates of dropout, how weights begin, weights of further losses.
    r"(\w+_)?(p?drop|dropout)(_(rate|prob|p))?",
    r"(\w+_)?(initializer_(range|factor|cutoff_factor)|init_(std|method|scale|device))",
    r"(\w+_)?(aux|z|balance)_loss(_\w+)?|\w+_loss_(coef|coeff|weight|alpha)",
    # Lengths of rows: positions that are rotated have no last one.
    r"n_ctx|seq(uence)?_len(gth)?|(model_)?max_(model_len|seq(uence)?_len(gth)?|length)",
    # How it is computed, not what: caches, kernels, checkpointing, precision of a softmax.
    r"cache_implementation|attn_implementation|(use_)?(flash|fused|memory_efficient)_\w+",
    r"gradient_checkpointing|ep_size|\w+_in_fp32|\w+_tp_plan",
)
"""Names, as regular expressions, of fields that no modelling code reads for a forward pass."""


def _is_off(value: Any) -> bool:
    return value is False


def _is_none_of_it(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0


def _multiplies_by_one(value: Any) -> bool:
    return isinstance(value, int | float) and value is not True and value == 1


_NEUTRAL: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    # Not use_rope and its like, which are on where nothing is said.
    (r"use_(?!rope$|rotary|positional)\w+|\w*bias|rope_interleaved", _is_off),
    (r"(num|n)_\w+|\w+_(size|coef|rate|prob)", _is_none_of_it),
    (r"\w+_(multiplier|factor|scale|scaling)", _multiplies_by_one),
)
"""Names of fields, and the values of them that switch off what they are for."""


def _is_harmless(name: str, value: Any) -> bool:
    """Whether a field that no entry of a map knows changes no number of a forward pass."""
    if (
        value is None
        or value in ("", [], {})
        or any(re.fullmatch(p, name) for p in _WITHOUT_READER)
    ):
        return True
    return any(
        re.fullmatch(pattern, name) and is_neutral(value) for pattern, is_neutral in _NEUTRAL
    )


def sorted_out(
    values: Mapping[str, Any], unread: frozenset[str], own_name: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """Return the names of fields that are harmless, and of those that could matter.

    Args:
        values: The fields that no entry of a family's map knows.
        unread: Names that no modelling code of the family reads.
        own_name: Returns a field's name without the part of the model that it is in.
    """
    own = {name: own_name(name) for name in values}
    harmless = {n for n in values if own[n] in unread or _is_harmless(own[n], values[n])}
    return sorted(harmless), sorted(values.keys() - harmless)
