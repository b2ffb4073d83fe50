"""Modifiers of precision: products, weights and the optimizer's state in fewer bits."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from axcore.config import (
    PositiveInt,
    config,
    evolve,
    field_names,
    find_config,
    suggest_names,
    update_config,
)
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.layers import (
    Dot,
    Fp8Current,
    Int8Dynamic,
    Linear,
    PackedLinear,
    PackedQuantizedLinear,
    PlainDot,
    QuantizedLinear,
)
from axcore.layers.quantization.stored_weights import WeightFormat
from axcore.learner import LowPrecisionState, Optimizer
from axcore.models.causal_lm import QuantizedHead, UntiedHead
from axcore.module import Module
from axcore.plugins import Hardware

FULL_PRECISION = ("**.embedding.**", "**.head.**", "**.router.**")
"""What keeps full precision by default: rounding it shows in every token and saves little time."""


def with_dot(cfg: Any, dot: Dot.Config, *, exclude: tuple[str, ...] = FULL_PRECISION) -> Any:
    """Return `cfg` with `dot` in the place of every `PlainDot`, but for those excluded.

    A layer whose `dot` is something else already keeps it.

    Raises:
        ConfigError: There is none to replace, or a glob is none.
    """
    dots = find_config(cfg, Dot)
    plain = [found.path for found in dots if isinstance(found.node, PlainDot.Config)]
    excluded = {path for glob in exclude for path in _excluded(glob, plain)}
    paths = [path for path in plain if path not in excluded]
    if not paths or isinstance(dot, PlainDot.Config):
        raise ConfigError(
            f"{type(dot).__qualname__} takes the place of nothing: of {len(dots)} products, "
            f"{len(dots) - len(plain)} are not plain and {len(excluded)} are excluded",
            hint="apply it once, to a config with linear layers, and exclude fewer of them",
        )
    return update_config(cfg, dict.fromkeys(paths, dot))


def _excluded(glob: str, paths: list[str]) -> list[str]:
    found = [path for path in paths if matches(parse_pattern(glob), parse_pattern(path))]
    if not found and glob not in FULL_PRECISION:
        raise ConfigError(
            f"exclude names {glob!r}, which matches no product", hint=suggest_names(glob, paths)
        )
    return found


def _replaced_linears(
    cfg: Any, new: Callable[[Any], Any], *, exclude: tuple[str, ...]
) -> tuple[Any, int]:
    """Return `cfg` with `new(linear)` instead of each plain `Linear`, and how many there are.

    Those stay that a layer needs as they are, which its config names in `plain_parts`.

    Args:
        cfg: Any config.
        new: From the config of a layer to another that takes its place.
        exclude: Globs of the paths of layers that stay as they are.
    """
    globs = [parse_pattern(glob) for glob in (*exclude, *_needed_as_they_are(cfg))]
    changes = {
        found.path: new(found.node)
        for found in find_config(cfg, Linear)
        # Not isinstance: what a class derived from Linear does would be lost.
        if type(found.node) is Linear.Config and isinstance(found.node.dot, PlainDot.Config)
        if not any(matches(glob, parse_pattern(found.path)) for glob in globs)
    }
    return (update_config(cfg, changes) if changes else cfg), len(changes)


def _needed_as_they_are(cfg: Any) -> Iterator[str]:
    for found in find_config(cfg, Module):
        for part in found.node.plain_parts:
            yield f"{found.path}.{part}".removeprefix(".")


@config
class Int8Training:
    """Compute the products of linear layers in int8.

    Args:
        dot: The product that takes the place of plain ones.
        exclude: Globs of the paths of layers that stay plain.
    """

    dot: Dot.Config = Int8Dynamic.Config()
    exclude: tuple[str, ...] = FULL_PRECISION

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with every plain `dot` replaced, but for those excluded.

        Raises:
            ConfigError: There is none.
        """
        return with_dot(cfg, self.dot, exclude=self.exclude)


@config
class Fp8Training:
    """Compute the products of linear layers in float8.

    Args:
        dot: The product that takes the place of plain ones; `Fp8Delayed.Config()` scales by what
            earlier steps held.
        exclude: Globs of the paths of layers that stay plain.
    """

    dot: Dot.Config = Fp8Current.Config()
    exclude: tuple[str, ...] = FULL_PRECISION

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with every plain `dot` replaced, but for those excluded.

        Raises:
            ConfigError: There is none.
        """
        return with_dot(cfg, self.dot, exclude=self.exclude)


@config
class QuantizedWeights:
    """Put a `QuantizedLinear` in the place of every plain `Linear`, but for those excluded.

    Those of experts are among them. A `QuantizedHead` takes the place of an `UntiedHead`.

    The state is changed by `axcore.layers.quantize_weights`.

    Args:
        format: "int8", "int4" or "float8_e4m3fn".
        group_size: Rows of a weight that share a scale in each column; None: all of them.
        exclude: Globs of the paths of layers that stay as they are.
        head: What a head with a projection of its own keeps that in; None leaves it as it is. A
            head that projects by the embedding table stays as it is.
    """

    format: WeightFormat = "int8"
    group_size: PositiveInt | None = None
    exclude: tuple[str, ...] = FULL_PRECISION
    head: Literal["int8"] | None = "int8"

    def apply(self, cfg: Any, hardware: Hardware | None = None) -> Any:
        """Return `cfg` with low-precision weights.

        Raises:
            ConfigError: No layer would have any.
        """
        quantized, num_changed = _replaced_linears(cfg, self._quantized, exclude=self.exclude)
        if not num_changed:
            num_linears = len(find_config(cfg, Linear))
            raise ConfigError(
                f"no weight can be kept in {self.format}: of {num_linears} linear layers all are "
                "excluded, or multiply in a way of their own",
                where="weights",
                hint="serve this model with the weights that it was trained with",
            )
        heads = {
            found.path: _with_fields_of(QuantizedHead.Config, found.node)
            for found in find_config(quantized, UntiedHead)
            if self.head is not None and type(found.node) is UntiedHead.Config
        }
        return update_config(quantized, heads) if heads else quantized

    def _quantized(self, linear: Any) -> QuantizedLinear.Config:
        kept: QuantizedLinear.Config = _with_fields_of(QuantizedLinear.Config, linear)
        return evolve(kept, format=self.format, group_size=self.group_size)


NAMED_WEIGHTS = {
    "int8": QuantizedWeights(),
    "int4": QuantizedWeights(format="int4", group_size=32),
    "float8": QuantizedWeights(format="float8_e4m3fn"),
}
"""What an engine's `weights` can be."""


EXPERTS = "**.expert.**"
"""Experts' weights are stacked; their rows go to products by group."""


def with_packed_weights(cfg: Any) -> Any:
    """Return `cfg` with its weights in panels, but for those of experts.

    Every plain `Linear` becomes a `PackedLinear`, and every `QuantizedLinear` a
    `PackedQuantizedLinear`. The state is changed by `axcore.ops.in_panels`.
    """
    cfg = _replaced_linears(cfg, partial(_with_fields_of, PackedLinear.Config), exclude=(EXPERTS,))[
        0
    ]
    of_experts = parse_pattern(EXPERTS)
    changes = {
        found.path: _with_fields_of(PackedQuantizedLinear.Config, found.node)
        for found in find_config(cfg, QuantizedLinear)
        if not matches(of_experts, parse_pattern(found.path))
    }
    return update_config(cfg, changes) if changes else cfg


def _with_fields_of(kind: Any, linear: Any) -> Any:
    """Return a config of a kind, with the fields of another one that it has too."""
    shared = set(field_names(linear)) & set(field_names(kind()))
    return kind(**{name: getattr(linear, name) for name in shared})


@config
class LowPrecisionOptimizer:
    """Put a `LowPrecisionState` around every optimizer, those of groups included.

    Args:
        format: How state is stored: `bfloat16`, or `int8_rows`, which is a quarter of float32.
    """

    format: Literal["bfloat16", "int8_rows"] = "int8_rows"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with every optimizer wrapped.

        Raises:
            ConfigError: It contains no optimizer, or one that is wrapped already.
        """
        there = find_config(cfg, LowPrecisionState)
        found = there or find_config(cfg, Optimizer)
        if there or not found:
            raise ConfigError(
                f"{there[0].path} stores its state in {there[0].node.format} already"
                if there
                else f"{type(cfg).__qualname__} contains no optimizer",
                where="LowPrecisionOptimizer",
                hint="apply it once, to a training config",
            )
        wrapped = LowPrecisionState.Config(format=self.format)
        return update_config(cfg, {one.path: evolve(wrapped, optimizer=one.node) for one in found})
