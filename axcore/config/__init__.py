"""Config trees: frozen, typed values that any function can traverse, edit, save and compare."""

from immutabledict import immutabledict

from axcore.config.build import Buildable, Configurable
from axcore.config.call import config_for
from axcore.config.decode import from_dict
from axcore.config.define import class_tag, config, field_names
from axcore.config.diff import ABSENT, Change, diff_config, format_diff
from axcore.config.edit import evolve, origin_of, replace_config, same_fields, update_config
from axcore.config.encode import to_dict
from axcore.config.golden import check_golden
from axcore.config.overrides import apply_overrides
from axcore.config.provenance import Origin, origins_of
from axcore.config.ranges import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from axcore.config.render import config_name, render_config
from axcore.config.required import REQUIRED
from axcore.config.resumable import Resumable, describe_resumable, resumable_paths
from axcore.config.serialise import digest, from_json, from_yaml, to_json, to_yaml
from axcore.config.suggest import did_you_mean, suggest_names
from axcore.config.traverse import Found, find_config, map_config, walk
from axcore.config.trust import config_class, is_trusted, trust_package, trusting
from axcore.config.values import is_config

__all__ = [
    "ABSENT",
    "REQUIRED",
    "Buildable",
    "Change",
    "Configurable",
    "Found",
    "Fraction",
    "NonNegativeFloat",
    "NonNegativeInt",
    "Origin",
    "PositiveFloat",
    "PositiveInt",
    "Resumable",
    "apply_overrides",
    "check_golden",
    "class_tag",
    "config",
    "config_class",
    "config_for",
    "config_name",
    "describe_resumable",
    "did_you_mean",
    "diff_config",
    "digest",
    "evolve",
    "field_names",
    "find_config",
    "format_diff",
    "from_dict",
    "from_json",
    "from_yaml",
    "immutabledict",
    "is_config",
    "is_trusted",
    "map_config",
    "origin_of",
    "origins_of",
    "render_config",
    "replace_config",
    "resumable_paths",
    "same_fields",
    "suggest_names",
    "to_dict",
    "to_json",
    "to_yaml",
    "trust_package",
    "trusting",
    "update_config",
    "walk",
]
