"""`QuantizedWeights`: keeps the weights of a model's linear layers narrow, to serve it."""

from typing import Any

from axcore.config import PositiveInt, config, field_names, find_config
from axcore.errors import ConfigError
from axcore.layers import Linear, QuantizedLinear
from axcore.layers.quantization.stored_weights import WeightFormat
from axcore.modifiers.dots import WIDE
from axcore.modifiers.linears import replaced_linears
from axcore.plugins import Hardware


@config
class QuantizedWeights:
    """Puts a `QuantizedLinear` in the place of every plain `Linear`, but for those excluded.

    Those of experts are among them.

    The state is changed by `axcore.layers.quantize_weights`.

    Args:
        format: "int8", "int4" or "float8_e4m3fn".
        group_size: Rows of a weight that share a scale in each column; None: all of them.
        exclude: Globs of the paths of layers that stay as they are.
    """

    format: WeightFormat = "int8"
    group_size: PositiveInt | None = None
    exclude: tuple[str, ...] = WIDE

    def apply(self, cfg: Any, hardware: Hardware | None = None) -> Any:
        """Returns `cfg` with narrow weights.

        Raises:
            ConfigError: No layer would have any.
        """
        narrow, num_changed = replaced_linears(cfg, self._narrow, exclude=self.exclude)
        if not num_changed:
            num_linears = len(find_config(cfg, Linear))
            raise ConfigError(
                f"no weight can be kept in {self.format}: of {num_linears} linear layers all are "
                "excluded, or multiply in a way of their own",
                where="weights",
                hint="serve this model with the weights that it was trained with",
            )
        return narrow

    def _narrow(self, linear: Any) -> QuantizedLinear.Config:
        shared = set(field_names(linear)) & set(field_names(QuantizedLinear.Config()))
        kept = {name: getattr(linear, name) for name in shared}
        return QuantizedLinear.Config(**kept, format=self.format, group_size=self.group_size)


NAMED_WEIGHTS = {
    "int8": QuantizedWeights(),
    "int4": QuantizedWeights(format="int4", group_size=32),
    "float8": QuantizedWeights(format="float8_e4m3fn"),
}
"""What an engine's `weights` can be."""
