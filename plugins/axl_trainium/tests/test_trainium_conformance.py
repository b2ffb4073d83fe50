"""axl-trainium, proven by axcore's suites; where there is no SDK, kernels run in the simulator."""

import pytest

from axcore.testing import KernelSuite, MeshRuleSuite, PluginSuite


class TestPlugin(PluginSuite):
    plugin = "axl-trainium"


class TestMeshRules(MeshRuleSuite):
    plugin = "axl-trainium"


class Simulated(KernelSuite):
    plugin = "axl-trainium"

    def implementation(self, kernel):
        return kernel.fn.resolve()


class TestKernels(Simulated):
    dtypes = ("float32",)
    case_names = ("odd_width",)


@pytest.mark.slow
class TestKernelsOnEveryCase(Simulated):
    pass
