"""A feature counts as added only where a model's traced loss depends on it."""

import subprocess
import sys
import textwrap

import pytest
from quick_flags import quick_environment

from axcore.complexity import (
    check_gate,
    chooses,
    measure_feature,
    multiplies,
    runs,
    serves,
    trace_model,
)
from axcore.complexity.family import LARGEST, model_family
from axcore.complexity.imports import modules_that_import
from axcore.config import config, digest, replace_config
from axcore.errors import ComplexityError
from axcore.layers import LayerNorm, PreNorm, QuantizedKVStore, RoPE
from axcore.models import TiedHead, UntiedHead
from axcore.modifiers import Int8Training, KVCache
from axcore.plugins import Feature, Hardware, Ref, plugin_host

CPU = Hardware.parse("cpu-1")


class Vain(PreNorm):
    """A connection that computes a norm, and does not use it."""

    @config
    class Config(PreNorm.Config):
        pass

    def setup(self, cfg):
        super().setup(cfg)
        self.vain = LayerNorm.Config().build(dim=cfg.dim)

    def forward(self, x, branch):
        self.vain(x)
        return super().forward(x, branch)


def without_a_change(cfg):
    Int8Training().apply(cfg, CPU)  # its result is dropped
    return cfg


def with_vain_norm(cfg):
    return replace_config(cfg, PreNorm, Vain.Config())


def with_tied_head(cfg):
    return replace_config(cfg, UntiedHead, TiedHead.Config())


has_int8 = multiplies("int8")
has_layer_norm = runs(LayerNorm)
has_tied_head = runs(TiedHead)


def feature(apply, evidence, **rest):
    return Feature(
        name="probe",
        apply=Ref(f"{__name__}:{apply.__name__}"),
        evidence=Ref(f"{__name__}:{evidence}"),
        summary="For a test",
        **rest,
    )


def first_model():
    return next(model_family(1, 1))[1]


@pytest.mark.slow
def test_no_two_models_of_the_family_are_alike():
    digests = {digest(cfg) for _, cfg in model_family(LARGEST, LARGEST)}
    assert len(digests) == LARGEST * LARGEST


@pytest.mark.slow
def test_four_models_in_four_variants_have_each_word_that_256_have():
    words = lambda size: {word for name, _ in model_family(size, size) for word in name.split()}  # noqa: E731
    assert words(4) == words(LARGEST)


@pytest.mark.parametrize("name", [record.name for record in plugin_host().records(Feature)])
def test_no_existing_module_knows_a_feature(name):
    (found,) = (one for one in plugin_host().records(Feature) if one.name == name)
    assert modules_that_import(found.implementation) == ()


BLOCKED = ("mypy", "pytest", "hypothesis", "beartype", "flax", "torch")
"""What a plain installation does not have."""


@pytest.mark.slow
def test_the_command_runs_on_a_plain_installation():
    """It reads the imports of every module of the package, and imports none of them for that."""
    code = f"""
import sys
from importlib.machinery import PathFinder

installed = PathFinder.find_spec

def plain(name, path=None, target=None):
    return None if name.split(".")[0] in {BLOCKED} else installed(name, path, target)

PathFinder.find_spec = plain
from axcore.cli.main import main
try:
    main(["loc", "--feature", "int8", "--models", "3", "--variants", "3", "--check"])
finally:
    print([name for name in ("axcore.config.mypy_plugin", "axcore.testing") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=quick_environment()
    )
    assert done.returncode == 0, done.stderr
    assert "9 of 9" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_smaller_families_are_parts_of_larger_ones():
    large = dict(model_family(4, 4))
    assert all(large[name] == cfg for name, cfg in model_family(2, 2))


def test_int8_is_found_where_it_is_and_not_where_it_is_not():
    plain = first_model()
    assert "no product of int8" in has_int8(trace_model(plain, CPU))
    assert has_int8(trace_model(Int8Training().apply(plain, CPU), CPU)) is None


@pytest.mark.slow
def test_a_modifier_whose_result_is_dropped_is_found_out():
    measured = measure_feature(feature(without_a_change, "has_int8"), models=4, variants=4)
    assert len(measured.lacks) == 16
    assert measured.growth.complexity == "quadratic"
    with pytest.raises(ComplexityError, match="probe is not in 16 models"):
        check_gate([measured])


def test_a_module_that_runs_in_vain_does_not_count():
    trace = trace_model(with_vain_norm(first_model()), CPU)
    assert "does not depend on decoder.stack.layer" in has_layer_norm(trace)


@pytest.mark.slow
def test_models_that_a_feature_does_not_fit_are_named():
    measured = measure_feature(feature(with_tied_head, "has_tied_head"), models=4, variants=4)
    assert {lack.model.split()[2] for lack in measured.lacks} == {"tied"}
    assert "no UntiedHead" in measured.lacks[0].reason
    assert measured.growth.complexity != "constant"


def test_every_module_of_a_kind_must_run():
    trace = trace_model(first_model(), CPU)
    assert runs(RoPE)(trace) is None
    assert "has no LayerNorm" in runs(LayerNorm)(trace)


@pytest.mark.slow
def test_what_only_serves_must_be_in_what_is_served():
    plain = first_model()
    trace = trace_model(KVCache(dtype="int8").apply(plain, CPU), CPU)
    assert serves(QuantizedKVStore)(trace) is None
    assert "has no QuantizedKVStore" in runs(QuantizedKVStore)(trace), "training keeps nothing"
    assert "has no QuantizedKVStore" in serves(QuantizedKVStore)(trace_model(plain, CPU))


def test_another_kernel_than_the_wanted_is_named():
    trace = trace_model(first_model(), CPU)
    assert chooses("attention", "fast")(trace).startswith("attention is served by ")


def test_importers_of_a_feature_are_found_through_re_exports(make_dist):
    make_dist(
        "axl-acme",
        files={
            "layers/__init__.py": "from axl_acme.layers.fast import Fast\n",
            "layers/fast.py": "class Fast: ...\n",
            "layers/knows.py": "from axl_acme.layers import Fast\n",
            "layers/innocent.py": "from math import pi\n",
            "models/uses.py": "from axl_acme.layers.fast import Fast\n",
        },
    )
    assert modules_that_import(["axl_acme.layers.fast"]) == ("axl_acme.layers.knows",)
    with pytest.raises(ComplexityError, match=r"axl_acme\.layers\.slow, which are not there"):
        modules_that_import(["axl_acme.layers.slow"])


def test_a_feature_may_own_a_part_of_a_module(make_dist):
    make_dist(
        "axl-parted",
        files={
            "layers/__init__.py": "from axl_parted.layers.fast import Fast, Plain\n",
            "layers/fast.py": "class Plain: ...\n\nclass Fast(Plain): ...\n",
            "layers/knows.py": "from axl_parted.layers import Fast\n",
            "layers/innocent.py": "from axl_parted.layers import Plain\n",
            "layers/mixed.py": "class Slow: ...\n\ndef choose(): return Slow\n",
        },
    )
    assert modules_that_import(["axl_parted.layers.fast:Fast"]) == ("axl_parted.layers.knows",)
    assert modules_that_import(["axl_parted.layers.mixed:Slow"]) == ("axl_parted.layers.mixed",)
    assert (
        modules_that_import(["axl_parted.layers.mixed:Slow", "axl_parted.layers.mixed:choose"])
        == ()
    )
    with pytest.raises(ComplexityError, match=r"fast:Slow, which are not there"):
        modules_that_import(["axl_parted.layers.fast:Slow"])


@pytest.mark.slow
def test_a_plugin_brings_features_of_its_own(make_dist, cli):
    make_dist(
        "axl-acme",
        """
        from axcore.plugins import Feature, Ref, hook

        @hook.features
        def features():
            yield Feature(name="acme", apply=Ref("axl_acme.acme:with_acme"),
                          evidence=Ref("axl_acme.acme:has_acme"),
                          implementation=("axl_acme.acme",), summary="Acme's norm")
        """,
        files={
            "acme.py": textwrap.dedent(
                """
                from axcore.complexity import runs
                from axcore.config import replace_config
                from axcore.layers import LayerNorm, PreNorm, RMSNorm

                def with_acme(cfg):
                    return replace_config(cfg, RMSNorm, LayerNorm.Config(), missing_ok=True)

                has_acme = runs(LayerNorm)
                """
            )
        },
    )
    assert "acme" in {record.name for record in plugin_host().records(Feature)}
    done = cli("loc", "--feature", "acme", "--check")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == [
        *("acme", "4", "0", "0", "4", "of", "4", "16", "of", "16", "0.00", "constant", "axl-acme")
    ]


@pytest.mark.slow
def test_a_feature_that_nobody_brings_is_named(cli):
    done = cli("loc", "--feature", "ropee")
    assert done.exit_code == 10
    assert "there is no feature 'ropee'; did you mean 'rope'?" in done.stderr


def test_a_feature_that_brings_a_task_is_looked_for_in_the_loss_of_the_task():
    gspo = next(one for one in plugin_host().records(Feature) if one.name == "gspo")
    plain = first_model()
    assert trace_model(plain, CPU).task is None
    trace = trace_model(gspo.apply.resolve()(plain), CPU)
    assert {"rewards", "sampler_log_probs"} <= trace.inputs < trace.batch
    assert gspo.evidence.resolve()(trace) is None
    assert "the task is NoneType" in gspo.evidence.resolve()(trace_model(plain, CPU))
