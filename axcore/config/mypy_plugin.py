"""A mypy plugin: knows what `cfg.build()` makes, and the fields of `evolve`.

Construction needs no plugin, since `@config` is a dataclass transform (PEP 681). To use it:

    [tool.mypy]
    plugins = ["axcore.config.mypy_plugin"]
"""

from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.nodes import TypeInfo
from mypy.plugin import FunctionSigContext, MethodContext, Plugin
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import FunctionLike, Instance, Type, get_proper_type
from mypy.typevars import fill_typevars_with_any


class ConfigPlugin(Plugin):
    """Knows that `X.Config` builds an `X`, and what `evolve` takes."""

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """Give `evolve` the signature that mypy gives `dataclasses.replace`."""
        if fullname == "axcore.config.edit.evolve":
            return replace_function_sig_callback
        return None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Give `build` of a nested `Config` the class around it as its result."""
        return _built if fullname.endswith(".Config.build") else None


def _built(context: MethodContext) -> Type:
    cfg = get_proper_type(context.type)
    if not (isinstance(cfg, Instance) and isinstance(context.api, TypeChecker)):
        return context.default_return_type
    is_slot = bool(cfg.args)  # a base, as `Module.Config[Linear]`, says what it builds, or may not
    if is_slot or not cfg.type.has_base("axcore.config.build.Buildable"):
        return context.default_return_type
    owner = _around(cfg.type, context.api)
    return context.default_return_type if owner is None else fill_typevars_with_any(owner)


def _around(info: TypeInfo, checker: TypeChecker) -> TypeInfo | None:
    """Return the class that a class is nested in, or None where it is in none."""
    names = info.fullname.removeprefix(f"{info.module_name}.").split(".")[:-1]
    found: TypeInfo | None = None
    table = checker.modules[info.module_name].names
    for name in names:
        symbol = table.get(name)
        if symbol is None or not isinstance(symbol.node, TypeInfo):
            return None
        found, table = symbol.node, symbol.node.names
    return found


def plugin(version: str) -> type[Plugin]:
    """Return the plugin; mypy calls this."""
    return ConfigPlugin
