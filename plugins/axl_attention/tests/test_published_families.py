"""Families by their published configs: the catalogue's sizes are these, and what is refused."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention import models
from axl_attention.biased_head import BiasedHead
from axl_attention.layers import OneBranchLayer
from axl_attention.mamba import selective_scan
from axl_attention.mamba2 import FlooredMamba2, Mamba2
from axl_attention.multipliers import ScaledFeedForward, ScaledMamba2
from axl_attention.norms import DividedLogits, HeadLayerNorm
from axl_attention.positions import LongRowQueries, OffsetPosition
from axl_attention.sparse_mixer import mixing_weights

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import family_named, family_of
from axcore.layers import NoPosition, TokenInfo
from axcore.models import TiedHead
from axcore.module import count_params, functional

CONFIGS = json.loads(
    (Path(__file__).parents[3] / "tests" / "interop" / "published_configs.json").read_text()
)


V32 = "deepseek-ai/DeepSeek-V3.2-Exp"
FALCON_H1 = "tiiuae/Falcon-H1-0.5B-Instruct"
NANO_3 = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
PHI_MOE = "microsoft/Phi-3.5-MoE-instruct, of other factors"


def published(name, **changes):
    return {**CONFIGS[name], **changes}


@pytest.mark.parametrize(
    ("family", "size", "name", "num_params"),
    [
        ("olmoe", "1b-7b", "allenai/OLMoE-1B-7B-0924", 6_919_161_856),
        ("qwen2_moe", "a2.7b", "Qwen/Qwen1.5-MoE-A2.7B", 14_315_784_192),
        ("qwen2_moe", "57b-a14b", "Qwen/Qwen2-57B-A14B", 57_408_658_944),
        ("granitemoe", "3b-a800m", "ibm-granite/granite-3.0-3b-a800m-base", 3_298_793_472),
        ("granite4", "h-tiny", "ibm-granite/granite-4.0-h-tiny", 6_939_037_248),
        ("granite4", "h-micro", "ibm-granite/granite-4.0-h-micro", 3_191_396_096),
        ("phi", "1.5", "microsoft/phi-1_5", 1_418_270_720),
        ("phi", "2", "microsoft/phi-2", 2_779_683_840),
        ("stablelm", "3b", "stabilityai/stablelm-3b-4e1t", 2_795_443_200),
        ("stablelm", "2-1.6b", "stabilityai/stablelm-2-1_6b", 1_644_515_328),
        ("stablelm", "2-12b", "stabilityai/stablelm-2-12b", 12_143_185_920),
        ("cohere", "aya-8b", "CohereForAI/aya-23-8B", 8_028_033_024),
        ("cohere", "command-r", "CohereForAI/c4ai-command-r-v01", 34_980_831_232),
        ("cohere", "command-r-plus", "CohereForAI/c4ai-command-r-plus", 103_810_674_688),
        ("cohere2", "r7b", "CohereForAI/c4ai-command-r7b-12-2024", 8_028_033_024),
        # Its vision tower is not counted.
        ("ministral3", "8b", "mistralai/Ministral-3-8B-Base-2512", 8_489_553_920),
        # With the routers' biases, dequantized.
        ("minimax_m2", "230b-a10b", "MiniMaxAI/MiniMax-M2.7", 228_689_764_864),
        ("falcon", "7b", "tiiuae/falcon-7b", 6_921_720_704),
        ("falcon", "40b", "tiiuae/falcon-40b", 41_303_293_952),
        ("falcon", "2-11b", "tiiuae/falcon-11B", 11_102_822_400),
        ("gptj", "6b", "EleutherAI/gpt-j-6b", 6_050_882_784),
        ("opt", "125m", "facebook/opt-125m", 125_239_296),
        ("bloom", "560m", "bigscience/bloom-560m", 559_214_592),
        ("qwen3_5", "9b", "Qwen/Qwen3.5-9B, text part", 8_953_803_264),
        ("qwen3_5", "35b-a3b", "Qwen/Qwen3.5-35B-A3B, text part", 34_660_610_688),
        ("glm47_flash", "30b-a3b", "zai-org/GLM-4.7-Flash", 29_943_393_920),
        ("nemotron_h", "nano-9b-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8_888_227_328),
        ("nemotron_h", "3-nano-30b-a3b", NANO_3, 31_577_940_288),
        ("falcon_h1", "0.5b", FALCON_H1, 521_411_104),
        # With the routers' biases, without the layer for a second token, dequantized.
        ("deepseek_v32", "671b", V32, 671_877_944_064),
        ("mamba", "130m", "state-spaces/mamba-130m-hf", 129_135_360),
    ],
)
@pytest.mark.filterwarnings("ignore:config.json has fields")
def test_published_config_is_that_of_the_catalogue(family, size, name, num_params):
    values, ours = CONFIGS[name], getattr(models, family)(size)
    described = family_named(values["model_type"])
    assert described.normal(described.read(values)) == described.normal(ours)
    assert count_params(ours.build().param_specs(), trainable_only=False) == num_params
    written = family_named(family_of(ours)[0])
    assert sum(map(math.prod, written.bind(ours).shapes.values())) == num_params


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("tiiuae/falcon-7b", {"alibi": True}, "alibi=True"),
        ("tiiuae/falcon-7b", {"parallel_attn": False}, "parallel_attn=False"),
        ("facebook/opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim=512"),
        ("microsoft/phi-2", {"qk_layernorm": True}, "qk_layernorm=True"),
        ("allenai/OLMoE-1B-7B-0924", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("MiniMaxAI/MiniMax-M2.7", {"attn_type_list": [0] * 62}, "attn_type_list=0"),
        ("ibm-granite/granite-4.0-h-tiny", {"position_embedding_type": "x"}, "is 'x'; axcore"),
        ("ibm-granite/granite-4.0-h-tiny", {"layer_types": ["mamba"]}, "there are 40 layers"),
        ("ibm-granite/granite-4.0-h-tiny", {"mamba_expand": 4}, "mamba_expand=4"),
        ("Qwen/Qwen3.5-9B, text part", {"attn_output_gate": False}, "attn_output_gate=False"),
        ("zai-org/GLM-4.7-Flash", {"mlp_layer_types": ["dense"]}, "there are 47 layers"),
        ("zai-org/GLM-4.7-Flash", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (NANO_3, {"hybrid_override_pattern": "M*E-"}, "all dense or all experts"),
        (NANO_3, {"num_hidden_layers": 51}, "is 51, and 52 layers are named"),
        (NANO_3, {"moe_latent_size": 1024}, "moe_latent_size=1024"),
        (V32, {"layer_types": ["full_attention"] * 61}, "layer_types='full_attention'"),
        (FALCON_H1, {"mamba_norm_before_gate": True}, "mamba_norm_before_gate=True"),
        (FALCON_H1, {"mamba_d_ssm": 2048}, "mamba_d_ssm"),
        (PHI_MOE, {"num_experts_per_tok": 4}, "num_experts_per_tok=4"),
        (PHI_MOE, {"rope_scaling": {"rope_type": "yarn"}}, "axcore knows longrope with one factor"),
        ("mistralai/Devstral-2-123B-Instruct-2512", {"rope_parameters": {}}, "has yarn and"),
    ],
)
@pytest.mark.filterwarnings("ignore:config.json has fields")
def test_what_no_layer_here_does_is_refused_by_name(name, changes, words):
    with pytest.raises(ConfigError, match=words):
        family_named(CONFIGS[name]["model_type"]).read(published(name, **changes))


def test_the_text_of_another_model_with_a_vision_tower_is_refused():
    values = CONFIGS["mistralai/Ministral-3-8B-Base-2512"]
    text = {**values["text_config"], "model_type": "mistral"}
    with pytest.raises(ConfigError, match="model_type='mistral'"):
        family_named("mistral3").read({**values, "text_config": text})


@pytest.mark.filterwarnings("ignore:config.json has fields")
def test_experts_next_to_a_feed_forward_may_be_left_out():
    cfg = family_named("granitemoehybrid").read(CONFIGS["ibm-granite/granite-4.0-h-micro"])
    assert family_of(cfg)[2]["num_local_experts"] == 0


def test_switches_of_stablelm_are_written_as_they_were_read():
    for name in ("stabilityai/stablelm-2-1_6b", "stabilityai/stablelm-2-12b"):
        values = published(name)
        written = family_of(family_named("stablelm").read(values))[2]
        for field in ("use_qkv_bias", "qk_layernorm", "use_parallel_residual"):
            assert written[field] == values.get(field, False)


@pytest.fixture
def head(random):
    weight, bias, x = random(9, 4), random(9), random(2, 3, 4)
    module = BiasedHead.Config(dim=4, vocab_size=9).build()
    state = {"weight": jnp.asarray(weight), "bias": jnp.asarray(bias)}
    return module, state, jnp.asarray(x), x @ weight.T + bias


def test_loss_of_a_head_with_a_bias_is_that_of_its_logits(head):
    module, state, x, logits = head
    table = jnp.zeros((9, 4))  # of the embedding, which such a head does not use
    np.testing.assert_allclose(functional(module, state, x, table)[0], logits, rtol=1e-5, atol=1e-5)
    targets, weights = jnp.array([[1, 2, 3], [4, 5, 8]]), jnp.ones((2, 3))
    total, _ = functional(module, state, x, table, targets, weights, method="loss")[0]
    scores = jax.nn.log_softmax(logits)
    expected = np.take_along_axis(np.asarray(scores), np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(total, -expected.sum(), rtol=1e-5)
    got = functional(module, state, x, table, targets, method="log_probs")[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_head_with_a_bias_and_capped_logits_is_refused():
    with pytest.raises(ConfigError, match=r"soft_cap is 30.0, and the head has a bias"):
        BiasedHead.Config(dim=4, vocab_size=9, soft_cap=30.0).build()


def test_divided_logits_have_the_log_probabilities_of_what_they_are(random):
    x, table = jnp.asarray(random(2, 3, 4)), jnp.asarray(random(9, 4))
    module = DividedLogits.Config(dim=4, vocab_size=9, divisor=4.0, inner=TiedHead.Config()).build()
    targets = jnp.array([[1, 2, 3], [4, 5, 8]])
    logits = functional(module, {}, x, table)[0]
    expected = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    for method in ("log_probs", "log_probs_and_entropies"):
        got = functional(module, {}, x, table, targets, method=method)[0]
        got = got if method == "log_probs" else got[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    weights = jnp.ones((2, 3))
    total, _, correct = functional(
        module, {}, x, table, targets, weights, method="loss_and_correct"
    )[0]
    np.testing.assert_allclose(total, -expected.sum(), rtol=1e-5)
    assert int(correct) == int((logits.argmax(-1) == targets).sum())


def test_each_head_is_normalised_alone_by_weights_of_its_own(random):
    x, weight = random(2, 3, 8), random(8)
    module = HeadLayerNorm.Config(dim=8, head_dim=4).build()
    got, _ = functional(module, {"weight": jnp.asarray(weight)}, jnp.asarray(x))
    heads = x.reshape(2, 3, 2, 4)
    normed = (heads - heads.mean(-1, keepdims=True)) / np.sqrt(heads.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, normed.reshape(x.shape) * weight, rtol=1e-4, atol=1e-5)


def test_heads_that_do_not_divide_what_is_normalised_are_refused():
    with pytest.raises(ConfigError, match="dim is 10, not a multiple of head_dim, 4"):
        HeadLayerNorm.Config(dim=10, head_dim=4).build()


def test_queries_grow_by_steps_behind_the_first_interval(random):
    q, k = jnp.asarray(random(1, 9, 2, 4)), jnp.asarray(random(1, 9, 1, 4))
    inner = NoPosition.Config()
    module = LongRowQueries.Config(interval=4, strength=0.5, inner=inner).build(head_dim=4)
    (got, same), _ = functional(module, {}, q, k, jnp.arange(9)[None])
    factors = 1 + 0.5 * np.log(1 + np.arange(9) // 4)
    np.testing.assert_allclose(got, q * factors[None, :, None, None], rtol=1e-6)
    np.testing.assert_array_equal(same, k)


def test_positions_begin_at_the_third_row_and_no_row_is_longer_than_there_are(random):
    module = OffsetPosition.Config(max_length=3).build(vocab_size=5, dim=2)
    table, positions = random(5, 2), random(5, 2)
    state = {"embedding": {"weight": jnp.asarray(table)}, "positions": jnp.asarray(positions)}
    tokens, info = jnp.array([[4, 1, 0]]), TokenInfo(jnp.arange(3)[None])
    got, _ = functional(module, state, tokens, info)
    np.testing.assert_allclose(got[0], table[[4, 1, 0]] + positions[2:], rtol=1e-6)
    with pytest.raises(ConfigError, match="rows have 4 tokens, but only 3 positions"):
        functional(module, state, jnp.zeros((1, 4), int), TokenInfo(jnp.arange(4)[None]))


def test_choices_are_weighed_against_near_rivals_that_earlier_ones_left(random):
    logits, margin = random(2, 3, 5), 0.3
    chosen = np.argsort(-logits, axis=-1)[..., :2]
    got = mixing_weights(jnp.asarray(logits), jnp.asarray(chosen), margin)
    for place in np.ndindex(2, 3):
        left = list(range(5))
        for choice, expert in enumerate(chosen[place]):
            best, scores = max(logits[place][left]), logits[place]
            near = [e for e in left if best - scores[e] <= 2 * margin * max(abs(scores[e]), best)]
            expected = np.exp(scores[expert]) / np.exp(scores[near]).sum()
            np.testing.assert_allclose(got[place][choice], expected, rtol=1e-5)
            left.remove(expert)


def test_steps_of_a_state_space_are_those_of_the_floor_or_their_own(random):
    x, info = jnp.asarray(random(1, 6, 4)), TokenInfo(jnp.arange(6)[None])
    sizes = {"dim": 4, "num_heads": 2, "head_dim": 4}
    state = Mamba2.Config(**sizes).build().init(0)

    def output(config, dt_bias):
        return functional(config.build(), {**state, "dt_bias": dt_bias}, x, info)[0]

    bias, high = state["dt_bias"], FlooredMamba2.Config(**sizes, smallest_step=50.0)
    np.testing.assert_array_equal(output(high, bias), output(high, bias + 0.5))
    low, plain = FlooredMamba2.Config(**sizes, smallest_step=1e-9), Mamba2.Config(**sizes)
    np.testing.assert_allclose(output(low, bias), output(plain, bias), rtol=1e-6)


def test_constants_that_are_too_few_are_refused():
    with pytest.raises(ConfigError, match="there are 1 factors; expected 5"):
        ScaledMamba2.Config(dim=4, num_heads=2, factors=(2.0,)).build()
    with pytest.raises(ConfigError, match="there are 1 factors; expected 2"):
        ScaledFeedForward.Config(dim=4, hidden_dim=4, factors=(2.0,)).build()


def test_a_layer_of_one_branch_has_one():
    with pytest.raises(ConfigError, match="it has both or none"):
        OneBranchLayer.Config(dim=4).build()


TIME, CHANNELS, STATE = 11, 3, 5
BEGINS = np.zeros((2, TIME), bool)
BEGINS[0, 4] = BEGINS[1, 7] = True


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_chunks_of_any_size_are_the_selective_scan(random, chunk):
    dt, x = np.abs(random(2, TIME, CHANNELS)), random(2, TIME, CHANNELS)
    b, c, a = random(2, TIME, STATE), random(2, TIME, STATE), -np.abs(random(CHANNELS, STATE))
    first = random(2, CHANNELS, STATE)
    got, last = jax.jit(selective_scan, static_argnames="chunk")(
        (dt, x, b, c, BEGINS), a, first, chunk=chunk
    )
    for row in range(2):
        state = first[row].astype(np.float64)
        for t in range(TIME):
            kept = 0.0 if BEGINS[row, t] else np.exp(dt[row, t][:, None] * a) * state
            state = kept + (dt[row, t] * x[row, t])[:, None] * b[row, t]
            np.testing.assert_allclose(got[row, t], state @ c[row, t], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(last[row], state, rtol=1e-4, atol=1e-4)


def test_steps_of_mamba_are_made_of_fewer_numbers_than_there_are_channels():
    shapes = {
        "/".join(map(str, spec.state_path)): spec.shape
        for spec in jax.tree.leaves(models.mamba("130m").build().param_specs())
    }
    (step,) = (shape for name, shape in shapes.items() if name.endswith("step/weight"))
    assert step == (24, 1536, 48)
    wider = update_config(models.mamba("toy"), {"**.mixer.step_rank": 7})
    assert family_of(wider)[2]["time_step_rank"] == 7
