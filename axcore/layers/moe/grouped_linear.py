"""`GroupedLinear`: the linear layer of many experts at once, each with rows of its own."""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Array, Float

from axcore.config import config, field_names, replace_config
from axcore.errors import ConfigError
from axcore.layers.dot import Dot
from axcore.layers.grouped_rows import GROUP_SIZES, GroupedRows, taken_by_rows
from axcore.layers.linear import Linear
from axcore.module import Module, StackedModule


class GroupedLinear(GroupedRows, Linear):
    """A `Linear` in a `StackedModule` that is called stacked: each row by its expert's weight.

    It has the parameters of a `Linear`, so that a state fits both.
    """

    @config
    class Config(Linear.Config):
        """Describes a `GroupedLinear`; its fields are those of `Linear`."""

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Returns the projection of rows sorted by expert, whose sizes are a shared value."""
        sizes = self.get_shared(GROUP_SIZES)
        rows = x.reshape(-1, x.shape[-1])
        y = self.dot.grouped(rows, self.weight, sizes)
        if self.config.has_bias:
            y = y + taken_by_rows(self.bias, sizes, len(rows))
        return y.reshape(*x.shape[:-1], -1)


def with_grouped_linears(cfg: Module.Config) -> Module.Config:
    """Returns the config of a feed-forward with every `Linear` in it replaced by a grouped one."""

    def is_linear(node: Any) -> bool:
        return type(node) is Linear.Config

    def grouped(linear: Any) -> GroupedLinear.Config:
        return GroupedLinear.Config(**{name: getattr(linear, name) for name in field_names(linear)})

    return replace_config(cfg, is_linear, grouped, missing_ok=True)


def check_supports_call_stacked(expert: Module) -> None:
    """Checks that all parameters of an expert are in layers that can distinguish experts.

    Raises:
        ConfigError: Naming the first module that has others.
    """
    for module in _modules(expert):
        if module._params and not isinstance(module, GroupedRows | Dot):
            raise ConfigError(
                f"an expert holds a {type(module).__qualname__}, whose parameters are not those of "
                "a Linear, so that rows of all experts cannot go through it at once",
                where="expert",
                hint="MoE.Config(dispatch=CapacityLimited.Config(...)), which runs any module",
            )
        if isinstance(module, Dot) and type(module).grouped is Dot.grouped:
            raise ConfigError(
                f"{type(module).__qualname__} has no grouped product, which experts need",
                where="expert",
                hint="leave the experts' products plain, or "
                "MoE.Config(dispatch=CapacityLimited.Config(...))",
            )


def _modules(module: Module) -> Iterator[Module]:
    yield module
    for _, child in module.children():
        yield from _modules(child.module if isinstance(child, StackedModule) else child)
