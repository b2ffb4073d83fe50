"""Entries of config maps and rules of weight maps that most families of decoders share.

Sizes, activations and windows; rotary positions (`RopeFields`); and families whose layers are of
several kinds (`LayerKinds`).
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import attrs

from axcore.config import replace_config, suggest_names, update_config
from axcore.errors import ConfigError
from axcore.interop.canonical import arranged, layers_of
from axcore.interop.config_map import (
    ConfigEntry,
    DefaultFrom,
    Field,
    Fields,
    common_value,
    sorted_out,
)
from axcore.interop.weight_map import Rule, WeightMap, below, linear, same
from axcore.layers import Sequence
from axcore.plugins import RopeScaling, plugin_host

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
"""Names of axcore by those of Hugging Face, of which the last one is written."""


def without(entries: Iterable[ConfigEntry], *names: str) -> tuple[ConfigEntry, ...]:
    """Return the entries of a config map but for those of these fields."""
    return tuple(entry for entry in entries if getattr(entry, "name", "") not in names)


def activation(name: str, default: str, path: str = "**.activation") -> Field:
    """Return the entry of a feed-forward's activation."""
    back = {axcore: hf for hf, axcore in ACTIVATIONS.items()}
    return Field(
        name,
        (path,),
        default=default,
        to_axcore=lambda value: ACTIVATIONS.get(value, value),
        to_hf=lambda value: back.get(value, value),
    )


def window(name: str, default: Any, path: str = "**.core.window") -> Field:
    """Return the entry of a sliding window, which counts the token itself."""
    return Field(
        name,
        (path,),
        default=default,
        # Hugging Face's counts the token itself, ours the tokens to its left.
        to_axcore=lambda value: None if value is None else (value - 1, 0),
        to_hf=lambda value: None if value is None else value[0] + 1,
    )


ATTENTION_BIAS = Field(
    "attention_bias",
    ("**.attention.linear.has_bias", "**.attention.out_linear.has_bias"),
    default=False,
)
KV_HEADS = DefaultFrom(
    "num_key_value_heads",
    "**.attention.num_kv_heads",
    lambda cfg: common_value(cfg, "**.attention.num_heads"),
)
HEAD_DIM = DefaultFrom(
    "head_dim",
    "**.attention.head_dim",
    lambda cfg: cfg.dim // common_value(cfg, "**.attention.num_heads"),
)
# Heads come before what defaults from them: entries are read in order.
SIZES: tuple[ConfigEntry, ...] = (
    Field("vocab_size", ("vocab_size",)),
    Field("hidden_size", ("dim",)),
    Field("num_hidden_layers", ("decoder.stack.num_layers",)),
    Field("num_attention_heads", ("**.attention.num_heads",)),
    KV_HEADS,
    # Defaults are those of transformers' config classes, which `save_pretrained` leaves out.
    Field("intermediate_size", ("**.hidden_dim",)),
    Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-6, to_axcore=float),
)
ATTENTION: WeightMap = (
    *linear("q", "q_proj"),
    *linear("k", "k_proj"),
    *linear("v", "v_proj"),
    *linear("out", "o_proj"),
)
FEED_FORWARD: WeightMap = (
    *linear("gate", "gate_proj"),
    *linear("up", "up_proj"),
    *linear("down", "down_proj"),
)


def model_weights(*layer: Rule) -> WeightMap:
    """Return the weight map of a model, given the rules of one layer."""
    return (
        same("decoder.embedding.weight", "model.embed_tokens.weight"),
        *below("decoder.stack.layer.{layer}", "model.layers.{layer}", layer),
        same("decoder.norm.weight", "model.norm.weight"),
        same("head.weight", "lm_head.weight"),
    )


PRE_NORMS: WeightMap = (
    same("attention_residual.norm.weight", "input_layernorm.weight"),
    same("feed_forward_residual.norm.weight", "post_attention_layernorm.weight"),
)
LLAMA_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    *below("feed_forward", "mlp", FEED_FORWARD),
)


PLAIN = "default"
_MULTIMODAL = "mrope"
_DYNAMIC = (
    "they depend on how long a row is, and are plain up to max_position_embeddings; for rows up to "
    "that, write rope_scaling: null into config.json"
)


@attrs.frozen
class RopeFields(ConfigEntry):
    """The fields of rotary positions.

    Args:
        path: Glob of the positions.
        theta: What the absence of a base means.
        name: The field of the base.
        layer_type: That of the layers with these positions, where others have other ones.
        is_scaled: Whether `rope_scaling` is of these positions.
    """

    path: str = "**.attention.position"
    theta: float = 10_000.0
    name: str = attrs.field(default="rope_theta", kw_only=True)
    layer_type: str = attrs.field(default="", kw_only=True)
    is_scaled: bool = attrs.field(default=True, kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions.

        Raises:
            ConfigError: No plugin that is installed has such positions.
        """
        theta = fields.take(self.name, self.theta)
        # Taken where they are not used, too: a field that nobody takes is an error.
        old, new = (fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters"))
        new = _of_type(new, self.layer_type)
        # The newer field wins, as in transformers, which writes both for some time.
        position = rope_position({"rope_theta": theta, **(old if self.is_scaled else {}), **new})
        return replace_config(cfg, lambda _: True, lambda _: position, at=self.path)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return `rope_theta`, and `rope_scaling` where there is any."""
        position = common_value(cfg, self.path)
        for record in _scalings().values():
            if type(position) is record.config.resolve():
                scaling = None if record.name == PLAIN else _scaling(record, position)
                described = {"rope_scaling": scaling} if self.is_scaled else {}
                return {self.name: position.theta, **described}
        raise ConfigError(
            f"{self.path} is a {type(position).__qualname__}, which config.json cannot describe",
            where=self.path,
        )


def _scalings() -> dict[str, RopeScaling]:
    return {record.name: record for record in plugin_host().records(RopeScaling)}


def _of_type(parameters: dict[str, Any], layer_type: str) -> dict[str, Any]:
    """Return what `rope_parameters` says about a type of layers, where there are several."""
    if not (parameters and layer_type):
        return parameters
    if layer_type not in parameters:
        raise ConfigError(
            f"rope_parameters has nothing on {layer_type}; it has {', '.join(parameters)}",
            where="rope_parameters",
        )
    found: dict[str, Any] = parameters[layer_type]
    return found


def rope_position(values: dict[str, Any]) -> Any:
    """Return the config of positions; `values` are all that `config.json` says about them."""
    # `type` is what `rope_type` was called before; files have one of them, or both.
    old_name = values.pop("type", PLAIN)
    kind, theta = values.pop("rope_type", old_name), values.pop("rope_theta")
    if not isinstance(theta, int | float):
        raise ConfigError(
            f"config.json has rope_theta={theta!r}, which is not a number",
            where="rope_theta",
            hint="compare it with the file that was published",
        )
    if kind == PLAIN and values.get("mrope_section"):  # as newer files call them
        kind = _MULTIMODAL
    record = _scalings().get(kind)
    if record is None:
        raise ConfigError(
            f"config.json has rotary positions of type {kind!r}, which nothing installed knows",
            where="rope_scaling",
            hint=_hint(kind),
        )
    known = {**record.fields, **record.optional}
    missing = [name for name in record.fields if values.get(name) is None]
    further = {name: value for name, value in values.items() if name not in known}
    ignored, strange = sorted_out(further, frozenset(), str)
    if missing or strange:
        raise ConfigError(
            f"rotary positions of type {kind!r} have {', '.join(known) or 'no more fields'}; "
            f"config.json lacks {missing} and also has {strange}",
            where="rope_scaling",
            hint="compare it with the file that was published; take out of it what changes nothing",
        )
    if ignored := [name for name in ignored if further[name] is not None]:
        shown = ", ".join(f"{name}={further[name]!r}" for name in ignored)
        warnings.warn(f"rope_scaling has fields that are ignored: {shown}", stacklevel=2)
    axcore = {known[name]: value for name, value in values.items() if name in known}
    return record.config.resolve()(theta=float(theta), **_as_floats(axcore))


def _hint(kind: str) -> str:
    if kind == "dynamic":
        return _DYNAMIC
    known = _scalings()
    others = "" if known.keys() - {PLAIN} else "; install axl-attention, which has others"
    return suggest_names(kind, known) + others


def _scaling(record: RopeScaling, position: Any) -> dict[str, Any]:
    values = {name: getattr(position, axcore) for name, axcore in record.fields.items()}
    for name, axcore in record.optional.items():
        value = getattr(position, axcore)
        # A switch that is off in both, files leave out: others may not know of it.
        if value is not False or getattr(record.config.resolve()(), axcore) is not False:
            values[name] = value
    return {
        # transformers reads that name of several axes in some families, and this one in all.
        "rope_type": PLAIN if record.name == _MULTIMODAL else record.name,
        **{name: value for name, value in values.items() if value is not None},
    }


# JSON has no float `8.0` in some files; lengths and sections are whole numbers in ours.
def _as_floats(values: dict[str, Any]) -> dict[str, Any]:
    """Return whole numbers as floats, but for lengths and sections; lists as tuples."""
    return {
        name: value if name.endswith(("length", "sections")) else _as_float(value)
        for name, value in values.items()
    }


def _as_float(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_as_float, value))
    return value if value is None or isinstance(value, bool) else float(value)


NUM_LAYERS = "num_hidden_layers"


@attrs.frozen
class LayerKinds(ABC):
    """Which layer is of which kind.

    Args:
        names: Of the kinds.
        kind_of: From a layer's config to the number of its kind.
        path: Of the stack, in the model's config.
    """

    names: tuple[str, ...]
    kind_of: Callable[[Any], int]
    path: str = attrs.field(default="decoder.stack", kw_only=True)

    @abstractmethod
    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer."""

    @abstractmethod
    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return the fields that say so, but for the number of layers."""

    def fold(self, cfg: Any) -> tuple[Any, list[int]]:
        """Return a model with one layer of each kind, and the kind of each of its layers.

        Raises:
            ConfigError: A kind has no layer, or two that differ.
        """
        layers = layers_of(attrgetter(self.path)(cfg))
        kinds = [int(self.kind_of(layer)) for layer in layers]
        one = dict(zip(kinds, layers, strict=True))
        for kind, name in enumerate(self.names):
            if kind not in one:
                raise ConfigError(f"the model has no layer of {name}", where=self.path)
        for i, (kind, layer) in enumerate(zip(kinds, layers, strict=True)):
            if layer != one[kind]:
                raise ConfigError(
                    f"layer {i} is not as the others of {self.names[kind]}", where=self.path
                )
        folded = Sequence.Config(layers=tuple(one[kind] for kind in sorted(one)))
        return self._with_stack(cfg, folded), kinds

    def unfold(self, cfg: Any, fields: Fields) -> Any:
        """Return a model with as many layers of each kind, and in the order, as fields say."""
        one, kinds = attrgetter(self.path)(cfg).layers, self.read(fields, fields.take(NUM_LAYERS))
        return self._with_stack(cfg, self.stack([one[kind] for kind in kinds]))

    def stack(self, layers: list[Any]) -> Any:
        """Return the stack of layers of these kinds."""
        # In one order of scans, so that two models with equal layers have one config.
        return arranged(layers)

    def _with_stack(self, cfg: Any, stack: Any) -> Any:
        return update_config(cfg, {self.path: stack})


@attrs.frozen
class LayerTypes(LayerKinds):
    """The kinds that `layer_types` has a name for in each layer.

    Args:
        default: From the fields to a function that returns a layer's kind, where there is no such
            field.
    """

    default: Callable[[Fields], Callable[[int], int]]

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer.

        Raises:
            ConfigError: A kind is unknown, or there is not one for each layer.
        """
        kind_of, named = self.default(fields), fields.take("layer_types", None)
        if named is None:
            return [kind_of(i) for i in range(num_layers)]
        unknown = sorted({str(name) for name in named} - set(self.names))
        if unknown or len(named) != num_layers:
            raise ConfigError(
                f"layer_types has {len(named)} layers, {', '.join(unknown) or 'none'} of them of a "
                f"type that axcore does not know; there are {num_layers}",
                where="layer_types",
                hint=f"name for each layer one of {', '.join(self.names)}",
            )
        return [self.names.index(name) for name in named]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return `layer_types`."""
        return {"layer_types": [self.names[kind] for kind in kinds]}


def every(period: int, *, kind: int = 1) -> Callable[[int], int]:
    """Return a function that gives the last of every `period` layers a kind, and others 0."""
    return lambda i: 0 if (i + 1) % period else kind
