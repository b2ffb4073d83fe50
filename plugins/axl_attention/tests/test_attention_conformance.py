"""axl-attention, proven by axcore's suites."""

import pytest

from axcore.config import update_config
from axcore.data import ByteTokenizer, TextFiles
from axcore.testing import ExperimentSuite, PluginSuite


class TestPlugin(PluginSuite):
    plugin = "axl-attention"


class TestExperiments(ExperimentSuite):
    plugin = "axl-attention"

    def complete(self, cfg):
        source, tokenizer = TextFiles.Config(folder="."), ByteTokenizer.Config()
        return update_config(cfg, {"data.source": source, "data.tokenizer": tokenizer})

    @pytest.mark.slow
    def test_step_can_be_traced(self, record):
        super().test_step_can_be_traced(record)
