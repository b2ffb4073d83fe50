"""Changes that put one stack in another's place do not drop what a derived class does."""

import pytest

from axcore.config import config, replace_config, same_fields
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny
from axcore.layers import KVCacheConfig, ScannedLayers
from axcore.modifiers import Pipelined, for_serving
from axcore.plugins import Hardware


class HalvedLayers(ScannedLayers):
    @config
    class Config(ScannedLayers.Config):
        pass

    def forward(self, x, info):
        return super().forward(x, info) / 2


CHANGES = {
    "Stack": lambda cfg: for_serving(cfg, KVCacheConfig(num_rows=1, capacity=8, max_length=8)),
    "Pipeline": lambda cfg: Pipelined().apply(cfg, Hardware.parse("cpu-1")),
}


@pytest.mark.parametrize("instead", CHANGES)
def test_stack_of_a_derived_class_is_refused_by_its_path(instead):
    cfg = replace_config(tiny(), ScannedLayers, lambda old: same_fields(old, HalvedLayers))
    what = f"HalvedLayers.Config is derived from ScannedLayers, in whose place comes {instead}"
    with pytest.raises(ConfigError, match=what) as raised:
        CHANGES[instead](cfg)
    assert raised.value.where == "model.decoder.stack"
    assert CHANGES[instead](tiny()) != tiny()
