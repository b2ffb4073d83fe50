"""axl-trainium, proven by axcore's suites."""

from axcore.testing import MeshRuleSuite, PluginSuite


class TestPlugin(PluginSuite):
    plugin = "axl-trainium"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-trainium"
