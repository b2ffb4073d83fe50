"""Glue for each kind of model is found inside of an implementation, however it is written."""

import pytest

from axcore.complexity import (
    KindCosts,
    check_gate,
    measure_feature,
    measure_kinds,
    runs,
    trace_model,
)
from axcore.complexity.kinds import known_kinds, unseen_kinds
from axcore.config import digest, find_config, replace_config
from axcore.errors import ComplexityError
from axcore.layers import LayerNorm, RMSNorm, TransformerLayer
from axcore.plugins import Feature, Hardware, Ref

IMPLEMENTATION = """
from axcore.config import replace_config, update_config
from axcore.layers import LayerNorm, PostNorm, PreNorm
from axcore.module import Module

PATH = "model.decoder.stack.layer.residual.norm"

def everywhere(cfg):
    return replace_config(cfg, Module, LayerNorm.Config(), at="**.norm")

def at_path(cfg):
    return update_config(cfg, {PATH: LayerNorm.Config()})

def residual_of(cfg):
    return cfg.model.decoder.stack.layer.residual
"""

FEATURES = """
from axcore.complexity import runs
from axcore.layers import LayerNorm
from axl_acme.norms import dispatch

def with_layer_norm(cfg):
    return dispatch(cfg)

has_layer_norm = runs(LayerNorm)
"""

NO_DISPATCH = """
def dispatch(cfg):
    return everywhere(cfg)
"""

ISINSTANCE = """
def dispatch(cfg):
    if isinstance(residual_of(cfg), PreNorm.Config):
        return at_path(cfg)
    if isinstance(residual_of(cfg), PostNorm.Config):
        return at_path(cfg)
    raise TypeError
"""

MATCH = """
def dispatch(cfg):
    match residual_of(cfg):
        case PreNorm.Config():
            return at_path(cfg)
        case PostNorm.Config():
            return at_path(cfg)
    raise TypeError
"""

FUNCTIONS_BY_NAME = """
def pre(cfg):
    return at_path(cfg)

def post(cfg):
    return at_path(cfg)

BY_NAME = {
    "PreNorm": pre,
    "PostNorm": post,
}

def dispatch(cfg):
    return BY_NAME[type(residual_of(cfg)).__qualname__.split(".")[0]](cfg)
"""

PATHS_BY_NAME = """
PATHS = {
    "PreNorm": PATH,
    "PostNorm": PATH,
}

def dispatch(cfg):
    path = PATHS[type(residual_of(cfg)).__qualname__.split(".")[0]]
    return update_config(cfg, {path: LayerNorm.Config()})
"""

BY_SPELLING = """
def dispatch(cfg):
    name = type(residual_of(cfg)).__qualname__
    return {"erP": at_path, "tsoP": at_path}[name[:4].replace("PreN", "Pre")[::-1]](cfg)
"""

NEEDLESS = """
def dispatch(cfg):
    if hasattr(cfg.model.head, "dim") and "Post" in str(type(residual_of(cfg))):
        cfg = everywhere(cfg)
        return cfg
    return everywhere(cfg)
"""


@pytest.fixture
def feature(make_dist):
    def made(dispatch):
        files = {"norms.py": IMPLEMENTATION + dispatch, "features.py": FEATURES}
        make_dist("axl-acme", files=files)
        return Feature(
            name="acme",
            apply=Ref("axl_acme.features:with_layer_norm"),
            evidence=Ref("axl_acme.features:has_layer_norm"),
            implementation=("axl_acme.norms",),
            summary="For a test",
        )

    return made


def test_an_implementation_that_knows_no_kind_has_no_glue(feature):
    assert measure_kinds(feature(NO_DISPATCH)) == KindCosts(glue=0, unseen=4, lacks=())


@pytest.mark.quick_one_in(6)
@pytest.mark.every_case
@pytest.mark.parametrize(
    ("dispatch", "num_lines", "num_lacks"),
    [
        pytest.param(ISINSTANCE, 3, 4, id="isinstance"),
        pytest.param(MATCH, 3, 4, id="match"),
        pytest.param(FUNCTIONS_BY_NAME, 3, 4, id="functions by name"),
        pytest.param(PATHS_BY_NAME, 2, 4, id="paths by name"),
        pytest.param(BY_SPELLING, 0, 4, id="names spelled backwards"),
        pytest.param(NEEDLESS, 2, 0, id="a branch that nothing needs"),
    ],
)
def test_dispatch_on_kinds_is_counted(feature, dispatch, num_lines, num_lacks):
    """Each line for a kind is, but for the first one's body; what hides fails on unseen kinds."""
    found = measure_kinds(feature(dispatch))
    assert (found.glue, len(found.lacks)) == (num_lines, num_lacks)


@pytest.mark.slow
def test_the_gate_closes_on_glue_in_an_implementation(feature):
    found = measure_feature(feature(ISINSTANCE), models=3, variants=3)
    assert not found.lacks, "it is in every model that its author knew"
    assert (found.lines, found.growth.complexity) == (3, "constant")
    with pytest.raises(ComplexityError, match="3 lines in its implementation for some") as caught:
        check_gate([found])
    assert "is not in 4 kinds that nobody named" in str(caught.value)


def test_unseen_kinds_are_models_of_classes_of_their_own():
    known, unseen = ([cfg for _, cfg in kinds()] for kinds in (known_kinds, unseen_kinds))
    assert len({digest(cfg) for cfg in (*known, *unseen)}) == 8
    assert not any(find_config(cfg, TransformerLayer) for cfg in unseen)
    normed = replace_config(unseen[0], RMSNorm, LayerNorm.Config())
    assert runs(LayerNorm)(trace_model(normed, Hardware.parse("cpu-1"))) is None
