"""`canonical`: a config of a model without what changes no number of its forward pass."""

from typing import Any

import attrs

from axcore.config import (
    REQUIRED,
    evolve,
    field_names,
    is_config,
    map_config,
    replace_config,
    update_config,
)
from axcore.errors import ConfigError
from axcore.interop.layer_order import arranged, layers_of
from axcore.layers import (
    DotProductAttention,
    Pipeline,
    ScannedLayers,
    Stack,
)

TRAINING_ONLY = frozenset(
    {
        "balance_loss",
        "balance_over",
        "dot",
        "dropout",
        "dtypes",
        "position_init",
        "remat",
        "unroll",
        "weight_init",
        "z_loss",
    }
)
"""Fields that say how a model is trained, or in which precision it computes."""


FILLED = frozenset({"dim", "head_dim", "num_kv_heads", "vocab_size"})
"""Fields that, where they have no default, parents fill; what was set there besides is the same."""


_CANONICAL = "__config_canonical__"


def canonical(cfg: Any) -> Any:
    """Returns a model's config without what changes no number of its forward pass.

    Fields of `TRAINING_ONLY` have their defaults, and layers are scanned in one order of scans.

    Raises:
        ConfigError: It is the config of something else than a language model.
    """
    # Kept with the config, a value that never changes: to read a model asks for it several times.
    found = cfg.__dict__.get(_CANONICAL)
    if found is None:
        found = _canonical(cfg)
        for one in (cfg, found):
            object.__setattr__(one, _CANONICAL, found)
    return found


def _canonical(cfg: Any) -> Any:
    if not {"dim", "vocab_size"} <= set(field_names(cfg)):
        raise ConfigError(f"{type(cfg).__qualname__} describes no language model")
    for stack in (Stack, Pipeline):
        cfg = replace_config(cfg, stack, ScannedLayers.Config(), missing_ok=True)
    plain = evolve(map_config(cfg, _plain), dim=cfg.dim, vocab_size=cfg.vocab_size)
    if "published" in field_names(plain):
        plain = evolve(plain, published=None)
    return update_config(plain, {"decoder.stack": arranged(layers_of(plain.decoder.stack))})


def uncorrected(cfg: Any) -> Any:
    """Returns a config with the base in the place of every layer that corrects one, as LoRA does.

    A correction that is new changes no number, so that weights of the one fit the other.
    """
    return map_config(cfg, _base)


def _base(node: Any) -> Any:
    base = getattr(node, "base", None)
    return base if is_config(base) else node


def _plain(node: Any) -> Any:
    defaults = {field.name: field.default for field in attrs.fields(type(node))}
    filled = {name for name in FILLED & defaults.keys() if defaults[name] is REQUIRED}
    if isinstance(node, DotProductAttention.Config):
        filled.add("num_heads")
        node = evolve(node, window=_seen(node))
    changed = filled | (TRAINING_ONLY & defaults.keys())
    return evolve(node, **{name: defaults[name] for name in changed})


def _seen(core: Any) -> Any:
    """Returns the window; what causal attention sees to its right says nothing."""
    return (core.window[0], 0) if core.window and core.is_causal else core.window
