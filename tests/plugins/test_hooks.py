"""The hooks themselves: every one documented, typed, and served by somebody."""

import inspect
import textwrap

import pytest

from axcore.errors import PluginError
from axcore.plugins import hook, hookspecs, plugin_host
from axcore.plugins.hooks import HOOKS


def test_every_hook_has_a_spec_with_an_example_and_every_spec_a_hook():
    specs = {
        name: value
        for name, value in vars(hookspecs).items()
        if inspect.isfunction(value) and value.__module__ == hookspecs.__name__
    }
    assert set(specs) == set(HOOKS)
    for name, spec in specs.items():
        assert f"@hook.{name}\n" in (inspect.getdoc(spec) or "")


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_example_of_every_hook_yields_its_records(installed, source, name):
    _, _, example = (inspect.getdoc(getattr(hookspecs, name)) or "").partition("Example:\n")
    installed.add("axl-example", source(textwrap.dedent(example)))
    plugin = installed.host().plugin("axl-example")
    assert plugin.trouble == ""
    assert [type(record) for record in plugin.records] == [HOOKS[name].record]


def test_every_hook_has_a_client():
    served = {name for plugin in plugin_host().plugins() for name in plugin.hooks}
    assert served == set(HOOKS)


def test_decorated_function_is_still_the_function():
    def kernels():
        yield from ()

    assert hook.kernels(kernels) is kernels


def test_unknown_hook_is_an_attribute_error_that_says_what_is_near():
    assert not hasattr(hook, "kernel")
    with pytest.raises(PluginError, match="there is no hook 'kernel'; did you mean 'kernels'"):
        hook.kernel  # noqa: B018
