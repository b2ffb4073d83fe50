"""Config trees: frozen, typed values that any function can traverse, edit, save and compare."""

from immutabledict import immutabledict

from axcore.config.build import Buildable, Configurable, config_for
from axcore.config.define import Origin, class_tag, config, field_names, origins_of
from axcore.config.edit import evolve, origin_of, replace_config, same_fields, update_config
from axcore.config.overrides import apply_overrides
from axcore.config.paths import (
    Found,
    Resumable,
    describe_resumable,
    find_config,
    map_config,
    resumable_paths,
    walk,
)
from axcore.config.render import (
    ABSENT,
    Change,
    check_golden,
    config_name,
    diff_config,
    format_diff,
    render_config,
)
from axcore.config.serialise import (
    digest,
    from_dict,
    from_json,
    from_yaml,
    to_dict,
    to_json,
    to_yaml,
)
from axcore.config.suggest import did_you_mean, suggest_names
from axcore.config.trust import config_class, is_trusted, trust_package, trusting
from axcore.config.values import (
    REQUIRED,
    Fraction,
    FromText,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
    is_config,
)

__all__ = [
    "ABSENT",
    "REQUIRED",
    "Buildable",
    "Change",
    "Configurable",
    "Found",
    "Fraction",
    "FromText",
    "NonNegativeFloat",
    "NonNegativeInt",
    "Origin",
    "PositiveFloat",
    "PositiveInt",
    "Resumable",
    "UnitInterval",
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
