"""Merged models: every number by the formula, the folder a model again, mismatches named."""

import numpy as np
import pytest
from click.testing import CliRunner
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.cli.convert import merge
from axcore.config import evolve
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.interop.merging import merge_models
from axcore.models import llama2

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    import jax

    folder, cfg = tmp_path_factory.mktemp("merging"), llama2("toy")
    first = numpy_state(cfg.build().param_specs())
    for name in ("base", "one", "two"):
        drawn = jax.tree.map(
            lambda leaf: jax.numpy.asarray(leaf + 0.1 * RNG.normal(size=leaf.shape), np.float32),
            first,
        )
        to_hugging_face(folder / name, cfg, drawn)
    return folder


def tensors(folder):
    return load_file(folder / "model.safetensors")


def check(folders, target, expected):
    base, one, two = (tensors(folders / name) for name in ("base", "one", "two"))
    found = tensors(target)
    assert found.keys() == one.keys()
    for name, tensor in found.items():
        wanted = expected(base[name], one[name], two[name])
        np.testing.assert_allclose(tensor, wanted, atol=2e-6, err_msg=name)


def test_linear_is_the_weighted_mean_and_the_folder_is_a_model(folders, tmp_path):
    arguments = ["linear", str(folders / "one"), str(folders / "two"), "--weights", "3,1"]
    ran = CliRunner().invoke(merge, [*arguments, "--to", str(tmp_path / "merged")])
    assert ran.exit_code == 0, ran.output
    assert "merged by linear" in ran.output
    check(folders, tmp_path / "merged", lambda base, one, two: 0.75 * one + 0.25 * two)
    read = from_hugging_face(tmp_path / "merged")
    assert evolve(read.config, dtypes=llama2("toy").dtypes, published=None) == llama2("toy")


def test_slerp_goes_along_the_sphere(folders, tmp_path):
    models = [folders / "one", folders / "two"]
    merge_models(models, tmp_path / "merged", method="slerp", weights=(0.75, 0.25))

    def expected(base, one, two):
        angle = np.arccos(np.sum(one * two) / np.linalg.norm(one) / np.linalg.norm(two))
        return (np.sin(0.75 * angle) * one + np.sin(0.25 * angle) * two) / np.sin(angle)

    check(folders, tmp_path / "merged", expected)


def test_ties_keeps_the_largest_changes_whose_sign_wins(folders, tmp_path):
    models = [folders / "one", folders / "two"]
    merge_models(models, tmp_path / "merged", method="ties", base=folders / "base", density=0.5)

    def trimmed(change):
        keep = round(0.5 * change.size)
        smallest = np.sort(np.abs(change).ravel())[-keep]
        return np.where(np.abs(change) >= smallest, change, 0)

    def expected(base, one, two):
        a, b = trimmed(one - base), trimmed(two - base)
        larger = np.where(np.abs(a) > np.abs(b), a, b)
        return base + np.where(a * b > 0, (a + b) / 2, larger)

    check(folders, tmp_path / "merged", expected)


def test_tensors_of_other_shapes_are_named_and_nothing_is_written(folders, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    found = tensors(folders / "two")
    found["model.norm.weight"] = np.ones(3, np.float32)
    del found["lm_head.weight"]
    save_file(found, other / "model.safetensors")
    with pytest.raises(CheckpointError, match="2 tensors cannot be merged") as error:
        merge_models([folders / "one", other], tmp_path / "merged", method="linear")
    assert "model.norm.weight has shape [64]" in str(error.value)
    assert "lm_head.weight is not in both" in str(error.value)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"method": "ties"}, "needs the model that the others began as"),
        ({"method": "linear", "base": "base"}, "linear has no base"),
        ({"method": "linear", "weights": (1.0,)}, r"weights are \[1.0\] for 2 models"),
        ({"method": "ties", "base": "base", "density": 0.0}, "density is 0.0"),
    ],
)
def test_options_that_do_not_fit_the_method_are_errors(folders, tmp_path, options, what):
    with pytest.raises(ConfigError, match=what):
        merge_models([folders / "one", folders / "two"], tmp_path / "merged", **options)
