"""K-quants lose as little as the published quantizer does, number by number."""

import gguf
import numpy as np
import pytest
from gguf_models import metadata_in, tensors_in, types_in, write_model

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop.gguf_k_quants import quantize_q4_k, quantize_q6_k
from axcore.models import llama2

KINDS = {"q4_k": (quantize_q4_k, "Q4_K"), "q6_k": (quantize_q6_k, "Q6_K")}


def again(rows, name):
    quantize, kind = KINDS[name]
    return gguf.quants.dequantize(quantize(rows), gguf.GGMLQuantizationType[kind])


def fit_with_minimum(x, highest=15):
    """The search of ggml's `make_qkx2_quants`, written as there, a number at a time."""
    weights = [float(np.sqrt(np.mean(x * x))) + abs(float(one)) for one in x]
    low, high = min(0.0, float(x.min())), float(x.max())
    if high <= low:
        return 0.0, -low
    best = None
    for step in range(-1, 21):
        inverse = (highest + (0.0 if step < 0 else -1 + 0.1 * step)) / (high - low)
        codes = [min(highest, max(0, round(inverse * (float(one) - low)))) for one in x]
        scale, least = (high - low) / highest, low
        if step >= 0:
            sums = {"w": 0.0, "x": 0.0, "l": 0.0, "l2": 0.0, "xl": 0.0}
            for w, one, code in zip(weights, x, codes, strict=True):
                sums["w"] += w
                sums["x"] += w * float(one)
                sums["l"] += w * code
                sums["l2"] += w * code * code
                sums["xl"] += w * code * float(one)
            determinant = sums["w"] * sums["l2"] - sums["l"] ** 2
            if determinant <= 0:
                continue
            scale = (sums["w"] * sums["xl"] - sums["x"] * sums["l"]) / determinant
            least = (sums["l2"] * sums["x"] - sums["l"] * sums["xl"]) / determinant
            if least > 0:
                scale, least = sums["xl"] / sums["l2"], 0.0
        error = sum(
            w * (scale * code + least - float(one)) ** 2
            for w, one, code in zip(weights, x, codes, strict=True)
        )
        if best is None or error < best[0]:
            best = error, scale, -least
    return best[1:]


def plain_q4_k(block):
    """What a block of 256 means after ggml's `quantize_row_q4_K_ref`."""
    fits = [fit_with_minimum(block[i : i + 32]) for i in range(0, 256, 32)]
    means, parts = np.empty(256, np.float32), []
    for values in zip(*fits, strict=True):
        largest = max(*values, 0.0)
        codes = [min(63, round(63 / largest * one)) if largest else 0 for one in values]
        parts.append([float(np.float16(largest / 63)) * code for code in codes])
    for i, (step, low) in enumerate(zip(*parts, strict=True)):
        group = block[32 * i : 32 * i + 32]
        codes = np.clip(np.rint((group + low) / step), 0, 15) if step else np.zeros(32)
        means[32 * i : 32 * i + 32] = step * codes - low
    return means


def plain_q6_k(block):
    """What a block of 256 means after ggml's `quantize_row_q6_K_ref`."""
    scales = []
    for i in range(0, 256, 16):
        x = [float(one) for one in block[i : i + 16]]
        largest = max(x, key=abs)
        best, scale = -1.0, 0.0
        for step in (0, *range(-9, 0), *range(1, 10)) if largest else ():
            codes = [min(31, max(-32, round(-(32 + 0.1 * step) / largest * one))) for one in x]
            sum_xl = sum(one**2 * one * code for one, code in zip(x, codes, strict=True))
            sum_l2 = sum(one**2 * code * code for one, code in zip(x, codes, strict=True))
            if sum_l2 and sum_xl**2 / sum_l2 > best:
                best, scale = sum_xl**2 / sum_l2, sum_xl / sum_l2
        scales.append(scale)
    largest = max(scales, key=abs)
    d = float(np.float16(largest / -128))
    means = np.empty(256, np.float32)
    for i, scale in enumerate(scales):
        step = d * min(127, round(-128 / largest * scale)) if largest else 0.0
        group = block[16 * i : 16 * i + 16]
        codes = np.clip(np.rint(group / step), -32, 31) if step else np.zeros(16)
        means[16 * i : 16 * i + 16] = step * codes
    return means


@pytest.mark.parametrize("scale", [1.0, 1e-4, 300.0])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_the_published_quantizer(name, scale):
    """But where two grids fit alike, and rounding decides which one is taken."""
    random = np.random.default_rng(0)
    rows = (scale * random.standard_t(4, size=(2, 512))).astype(np.float32)
    plain = {"q4_k": plain_q4_k, "q6_k": plain_q6_k}[name]
    expected = np.concatenate([plain(block) for block in rows.reshape(-1, 256)]).reshape(2, 512)
    found = again(rows, name)
    is_same = np.isclose(found, expected, rtol=1e-4, atol=1e-6 * scale)
    assert is_same.mean() > 0.9
    errors = [np.square(one - rows).mean() for one in (found, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)


@pytest.mark.parametrize(("name", "most"), [("q4_k", 0.073), ("q6_k", 0.0185)])
def test_normal_numbers_lose_this_much(name, most):
    rows = np.random.default_rng(0).normal(size=(16, 1024)).astype(np.float32)
    error = np.sqrt(np.square(again(rows, name) - rows).mean())
    assert 0.9 * most < error < most


@pytest.mark.parametrize("name", KINDS)
def test_odd_rows_are_kept(name):
    rows = np.zeros((4, 256), np.float32)
    rows[1], rows[2, 7], rows[3] = 1.0, -5.0, -0.25
    found = again(rows, name)
    assert not found[0].any()
    np.testing.assert_allclose(found, rows, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("name", "number"), [("q4_k", 14), ("q6_k", 18)])
def test_matrices_of_a_file_have_the_type_and_its_head_six_bits(name, number, tmp_path):
    cfg = update_config(llama2("toy"), {"dim": 256, "**.hidden_dim": 512})
    state = write_model(tmp_path / "model.gguf", cfg, dtype=name)
    types, found = types_in(tmp_path / "model.gguf"), tensors_in(tmp_path / "model.gguf")
    assert types["blk.0.ffn_up.weight"] == types["token_embd.weight"] == name.upper()
    assert types["output.weight"] == "Q6_K"
    assert metadata_in(tmp_path / "model.gguf")["general.file_type"] == number
    up = np.asarray(state["decoder"]["stack"]["layer"]["feed_forward"]["up"]["weight"][0]).T
    error = np.abs(found["blk.0.ffn_up.weight"] - up).max()
    assert error < (0.1 if name == "q4_k" else 0.02) * np.abs(up).max()


def test_rows_without_full_blocks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"rows of 64 numbers, and q4_k blocks of 256") as error:
        write_model(tmp_path / "model.gguf", llama2("toy"), dtype="q4_k")
    assert "--dtype q8_0" in str(error.value)
