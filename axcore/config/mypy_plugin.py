"""A mypy plugin: `evolve(cfg, dim=3)` is checked against the fields of `cfg`.

Construction needs no plugin, since `@config` is a dataclass transform (PEP 681). To use it:

    [tool.mypy]
    plugins = ["axcore.config.mypy_plugin"]
"""

from collections.abc import Callable

from mypy.plugin import FunctionSigContext, Plugin
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import FunctionLike


class ConfigPlugin(Plugin):
    """Gives `evolve` the signature that mypy gives `dataclasses.replace`."""

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """Returns the hook of `evolve`, and none of any other function."""
        if fullname == "axcore.config.edit.evolve":
            return replace_function_sig_callback
        return None


def plugin(version: str) -> type[Plugin]:
    """Returns the plugin; mypy calls this."""
    return ConfigPlugin
