"""Replacing layers by variants that plugins bring."""

import pytest

from axcore.errors import ConfigError, PluginError
from axcore.layers import FeedForward
from axcore.modifiers import with_variant


def test_unknown_variant_says_what_there_is():
    with pytest.raises(PluginError, match="no plugin brings a layer variant 'zebra'; known: "):
        with_variant(FeedForward.Config(), "zebra")


def test_misspelt_variant_says_what_is_near():
    with pytest.raises(PluginError, match="did you mean 'sliding_window'"):
        with_variant(FeedForward.Config(), "slidingwindow")


def test_variant_of_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="DotProductAttention"):
        with_variant(FeedForward.Config(), "sliding_window")
