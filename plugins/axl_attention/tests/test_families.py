"""Families: parameters as published, to the last digit; and toy sizes that learn."""

import jax
import numpy as np
import pytest
from axl_attention.models import (
    bloom,
    cohere,
    cohere2,
    deepseek_v2,
    deepseek_v3,
    deepseek_v32,
    falcon,
    falcon_h1,
    gemma,
    gemma2,
    gemma3,
    glm,
    glm4,
    glm45,
    glm47_flash,
    gpt2,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite4,
    granitemoe,
    kimi_k2,
    llama4,
    llama31,
    llama32,
    mamba,
    mamba2,
    minimax_m2,
    ministral3,
    nemotron_h,
    olmo2,
    olmo3,
    olmoe,
    opt,
    phi,
    phi3,
    phimoe,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
    smollm3,
    stablelm,
    starcoder2,
)

from axcore.config import find_config, from_json, to_json
from axcore.errors import ConfigError
from axcore.layers import MoE, ScannedLayers
from axcore.models import flops_per_token
from axcore.module import count_params

FAMILIES = (
    *(olmo2, gpt2, qwen3, qwen3_moe, gemma, gemma2, gemma3),
    *(granite, deepseek_v2, deepseek_v3, kimi_k2, gpt_neox, olmo3, smollm3),
    *(phi3, gpt_oss, starcoder2, llama4, qwen3_next, llama31, llama32, glm45),
    *(phi, stablelm, cohere, cohere2, bloom, opt, gptj, falcon, mamba, granite4),
    *(olmoe, qwen2_moe, granitemoe, ministral3, minimax_m2, phimoe, qwen3_5),
    *(glm47_flash, nemotron_h, falcon_h1, deepseek_v32),
)
"""The first of every seven is trained in the quick tests."""

VISION = 416_866_032
"""Parameters of the vision tower that Gemma 3 comes with: 27 layers of width 1152."""


def size_of(cfg):
    return count_params(cfg.build().param_specs(), trainable_only=False)


@pytest.mark.parametrize(
    ("family", "size", "published"),
    [
        # OpenAI's weights, as Hugging Face counts them.
        (gpt2, "small", 124_439_808),
        (gpt2, "medium", 354_823_168),
        (gpt2, "large", 774_030_080),
        (gpt2, "xl", 1_557_611_200),
        (phimoe, "3.5", 41_873_153_344),
        # Qwen/Qwen3-*; files of the two smallest have their head once more.
        (qwen3, "0.6b", 751_632_384 - 151_936 * 1024),
        (qwen3, "1.7b", 2_031_739_904 - 151_936 * 2048),
        (qwen3, "4b", 4_022_468_096),
        (qwen3, "8b", 8_190_735_360),
        (qwen3, "14b", 14_768_307_200),
        (qwen3, "32b", 32_762_123_264),
        (qwen3_moe, "30b-a3b", 30_532_122_624),
        (qwen3_moe, "235b-a22b", 235_093_634_560),
        # meta-llama/Llama-3.1-* and Llama-3.2-*.
        (llama31, "8b", 8_030_261_248),
        (llama31, "70b", 70_553_706_496),
        (llama31, "405b", 405_853_388_800),
        (llama32, "1b", 1_235_814_400),
        (llama32, "3b", 3_212_749_824),
        # google/gemma-*.
        (gemma, "2b", 2_506_172_416),
        (gemma, "7b", 8_537_680_896),
        # google/gemma-2-*.
        (gemma2, "2b", 2_614_341_888),
        (gemma2, "9b", 9_241_705_984),
        (gemma2, "27b", 27_227_128_320),
        # google/gemma-3-1b-pt; the larger ones come with a vision tower, see below.
        (gemma3, "1b", 999_885_952),
        # deepseek-ai/DeepSeek-V2-Lite and DeepSeek-V2.
        (deepseek_v2, "lite", 15_706_484_224),
        (deepseek_v2, "236b", 235_741_434_880),
        # deepseek-ai/DeepSeek-V3 without its second head, with the routers' biases.
        (deepseek_v3, "671b", 671_026_419_200),
        # openai/gpt-oss-*, dequantized.
        (gpt_oss, "20b", 20_914_757_184),
        (gpt_oss, "120b", 116_829_156_672),
        # THUDM/glm-4-9b-hf, GLM-4-9B-0414 and GLM-4-32B-0414.
        (glm, "9b", 9_399_951_360),
        (glm4, "9b", 9_400_279_040),
        (glm4, "32b", 32_566_081_536),
        # moonshotai/Kimi-K2-Base, with the routers' biases.
        (kimi_k2, "1t", 1_026_408_232_448),
    ],
)
def test_parameters_are_as_many_as_published(family, size, published):
    assert size_of(family(size)) == published


@pytest.mark.parametrize(
    ("size", "dim", "published"),
    [("4b", 2560, 4_300_079_472), ("12b", 3840, 12_187_325_040), ("27b", 5376, 27_432_406_640)],
)
def test_gemma_3_is_its_published_size_without_the_vision_tower(size, dim, published):
    """google/gemma-3-*-pt; images enter by a projection from 1152, with a norm."""
    assert size_of(gemma3(size)) == published - VISION - 1152 * (dim + 1)


def test_vision_tower_is_counted_by_its_formula():
    """SigLIP-400m: 14 x 14 patches of 896 x 896 pixels, feed-forwards of 4304, biases."""
    attention = 4 * 1152 * (1152 + 1)
    feed_forward = 1152 * 4304 + 4304 + 4304 * 1152 + 1152
    embeddings = 3 * 14 * 14 * 1152 + 1152 + (896 // 14) ** 2 * 1152
    assert embeddings + 27 * (attention + feed_forward + 4 * 1152) + 2 * 1152 == VISION


def test_biases_of_deepseek_v3_are_no_trained_parameters():
    specs = deepseek_v3("671b").build().param_specs()
    assert size_of(deepseek_v3("671b")) - count_params(specs) == 58 * 256


@pytest.mark.parametrize(
    "family",
    [*FAMILIES, pytest.param(mamba2, marks=pytest.mark.slow)],
    ids=lambda family: family.__name__,
)
@pytest.mark.quick_one_in(14)
def test_toy_learns_and_sees_no_later_token(family, run_model):
    """Every parameter that is trained gets a gradient, and a step along it lowers the loss."""
    state, run = run_model(family("toy"))
    tokens = np.arange(16, dtype=np.int32).reshape(2, 8)
    loss, gradient, logits = jax.device_get(run(state, tokens))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.all(np.isfinite(leaf))
        name = jax.tree_util.keystr(path)
        is_trained = not name.endswith("['router']['bias']") and "['indexer']" not in name
        assert np.any(leaf) or not is_trained, f"no gradient at {name}"
    stepped = jax.tree.map(lambda x, slope: x - 0.02 * slope, state, gradient)
    assert run(stepped, tokens)[0] < loss
    changed = tokens.copy()
    changed[:, -1] = 99
    after = run(state, changed)[2]
    np.testing.assert_allclose(after[:, :-1], logits[:, :-1], atol=1e-5)
    assert not np.allclose(after[:, -1], logits[:, -1], atol=1e-3)


@pytest.mark.parametrize("family", [*FAMILIES, mamba2], ids=lambda family: family.__name__)
def test_family_is_saved_and_read_back_and_knows_its_sizes(family):
    cfg = family("toy")
    assert from_json(to_json(cfg)) == cfg
    with pytest.raises(ConfigError, match=rf"{family.__name__} has no size 'huge'.*toy"):
        family("huge")


def test_first_layers_of_deepseek_have_no_experts():
    stacks = [found.node for found in find_config(deepseek_v3("671b"), ScannedLayers)]
    mixed = {stack.num_layers: bool(find_config(stack, MoE)) for stack in stacks}
    assert mixed == {3: False, 58: True}


def test_one_layer_of_six_of_gemma_3_is_global_and_the_last_four_are_local():
    stack = gemma3("4b").decoder.stack
    turns, left = stack.layers
    *near, wide = turns.layer.layers
    assert (turns.num_layers, len(near), left.num_layers) == (5, 5, 4)
    assert set(near) == {left.layer}
    assert left.layer.attention.core.window == (1023, None)
    assert wide.attention.core.window is None


@pytest.mark.parametrize(
    ("cfg", "active", "width"),
    [
        # Qwen3-30B-A3B has 3,353,032,704 active parameters with its embeddings.
        (qwen3_moe("30b-a3b"), 3_353_032_704 - 151_936 * 2048, 48 * 32 * 128),
        # Every head compares 192 dimensions and mixes 128.
        (deepseek_v2("lite"), None, 27 * 16 * (192 + 128) // 2),
        # A tied table is multiplied by once; positions are looked up.
        (gpt2("small"), 124_439_808 - 1024 * 768, 12 * 768),
    ],
    ids=["experts", "latent", "tied"],
)
def test_flops_count_what_a_token_is_multiplied_by(cfg, active, width):
    model, seq_len = cfg.build(), 1024
    per_token = flops_per_token(model, seq_len)
    assert flops_per_token(model, 2 * seq_len) - per_token == 6 * seq_len * width
    if active is not None:
        assert per_token == pytest.approx(6 * active + 6 * seq_len * width, rel=1e-12)
