"""axl-attention, proven by axcore's suites."""

import pytest

from axcore.testing import ExperimentSuite, PluginSuite


class TestPlugin(PluginSuite):
    plugin = "axl-attention"


class TestExperiments(ExperimentSuite):
    plugin = "axl-attention"

    @pytest.mark.slow
    def test_step_can_be_traced(self, record):
        super().test_step_can_be_traced(record)
