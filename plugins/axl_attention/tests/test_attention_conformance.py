"""axl-attention, proven by axcore's suites."""

from typing import ClassVar

import pytest

from axcore.testing import ExperimentSuite, LayerSuite, PluginSuite


class TestPlugin(PluginSuite):
    plugin = "axl-attention"


class TestExperiments(ExperimentSuite):
    plugin = "axl-attention"

    @pytest.mark.slow
    def test_step_can_be_traced(self, record):
        super().test_step_can_be_traced(record)


@pytest.mark.slow
class TestLayers(LayerSuite):
    plugin = "axl-attention"
    unused: ClassVar = {"value_residual": ("share",)}
