"""What the core registers is there."""

import pytest

from axcore.complexity.imports import modules_that_import
from axcore.plugins import Feature, plugin_host

FEATURES = {one.name: one for one in plugin_host().records(Feature) if one.plugin == "core"}


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_feature_names_its_own_modules_and_no_other_imports_them(name):
    assert modules_that_import(FEATURES[name].implementation) == ()
