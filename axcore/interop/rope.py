"""`RopeFields`: rotary positions in `config.json`, in both of the forms that are in use.

Older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`; exports have the
older one, which transformers 5 still reads. Plugins bring ways of scaling.
"""

import warnings
from typing import Any

import attrs

from axcore.config import replace_config, suggest_names
from axcore.errors import ConfigError
from axcore.interop.config_map import ConfigEntry, Fields, common_value
from axcore.interop.harmless_fields import sorted_out
from axcore.plugins import RopeScaling, plugin_host

PLAIN = "default"
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
        """Returns a config with these positions.

        Raises:
            ConfigError: No plugin that is installed has such positions.
        """
        theta = fields.take(self.name, self.theta)
        old, new = (fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters"))
        new = _of_type(new, self.layer_type)
        position = rope_position({"rope_theta": theta, **(old if self.is_scaled else {}), **new})
        return replace_config(cfg, lambda _: True, lambda _: position, at=self.path)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Returns `rope_theta`, and `rope_scaling` where there is any."""
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
    """Returns what `rope_parameters` says of a type of layers, where there are several."""
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
    """Returns the config of positions; `values` are all that `config.json` says of them."""
    old_name = values.pop("type", PLAIN)
    kind, theta = values.pop("rope_type", old_name), values.pop("rope_theta")
    if not isinstance(theta, int | float):
        raise ConfigError(
            f"config.json has rope_theta={theta!r}, which is no number",
            where="rope_theta",
            hint="compare it with the file that was published",
        )
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
    ignored, strange = sorted_out(further, frozenset())
    if missing or strange:
        raise ConfigError(
            f"rotary positions of type {kind!r} have {', '.join(known) or 'no more fields'}; "
            f"config.json lacks {missing} and has {strange} besides",
            where="rope_scaling",
            hint="compare it with the file that was published; take out of it what changes nothing",
        )
    if ignored := [name for name in ignored if further[name] is not None]:
        shown = ", ".join(f"{name}={further[name]!r}" for name in ignored)
        warnings.warn(f"rope_scaling has fields that are ignored: {shown}", stacklevel=2)
    ours = {known[name]: value for name, value in values.items() if name in known}
    return record.config.resolve()(theta=float(theta), **_as_floats(ours))


def _hint(kind: str) -> str:
    if kind == "dynamic":
        return _DYNAMIC
    known = _scalings()
    others = "" if known.keys() - {PLAIN} else "; install axl-attention, which has others"
    return suggest_names(kind, known) + others


def _scaling(record: RopeScaling, position: Any) -> dict[str, Any]:
    values = {name: getattr(position, ours) for name, ours in record.fields.items()}
    values |= {name: getattr(position, ours) for name, ours in record.optional.items()}
    return {
        "rope_type": record.name,
        **{name: value for name, value in values.items() if value is not None},
    }


def _as_floats(values: dict[str, Any]) -> dict[str, Any]:
    """Returns whole numbers as floats, but for lengths; lists as tuples."""
    return {
        name: value if name.endswith("length") else _as_float(value)
        for name, value in values.items()
    }


def _as_float(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_as_float, value))
    return value if value is None or isinstance(value, bool) else float(value)
