"""axl-attention, proven by axcore's suites."""

from axcore.testing import PluginSuite


class TestPlugin(PluginSuite):
    plugin = "axl-attention"
