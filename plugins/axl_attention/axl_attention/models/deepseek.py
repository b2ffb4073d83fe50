"""DeepSeek-V2 and V3, and Kimi K2: latent attention, and experts in all but the first layers."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.layers import Attention, FeedForward, GroupLimit, MoE, Router, Sequence
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.latent_attention import LatentAttention
from axl_attention.yarn import YaRN, stretched_scale

_HEADS = {"head_dim": 128, "rope_dim": 64, "value_dim": 128, "latent_dim": 512}
_TOY = {
    **TOY,
    "num_kv_heads": None,
    "num_layers": 3,
    "num_dense": 1,
    "heads": {"head_dim": 16, "rope_dim": 8, "value_dim": 12, "latent_dim": 32},
    "expert_dim": 32,
    "num_shared": 2,
}

DEEPSEEK_V2_SIZES: Sizes = {
    "lite": {
        "vocab_size": 102_400,
        "dim": 2048,
        "num_layers": 27,
        "num_heads": 16,
        "hidden_dim": 10_944,
        "num_dense": 1,
        "heads": _HEADS,
        "expert_dim": 1408,
        "num_shared": 2,
        "experts": {"num_experts": 64, "top_k": 6},
        "routing": {},
    },
    "236b": {
        "vocab_size": 102_400,
        "dim": 5120,
        "num_layers": 60,
        "num_heads": 128,
        "hidden_dim": 12_288,
        "num_dense": 1,
        "heads": {**_HEADS, "query_latent_dim": 1536},
        "expert_dim": 1536,
        "num_shared": 2,
        "experts": {"num_experts": 160, "top_k": 6},
        "routing": {"scale": 16.0, "groups": GroupLimit(num_groups=8, num_kept=3, rated_by=1)},
    },
    "toy": {**_TOY, "experts": {"num_experts": 4, "top_k": 2}, "routing": {}},
}

_V3_ROUTER = {"score": "sigmoid", "bias_rate": 0.001, "balance_loss": 0.0001}

DEEPSEEK_V3_SIZES: Sizes = {
    "671b": {
        "vocab_size": 129_280,
        "dim": 7168,
        "num_layers": 61,
        "num_heads": 128,
        "hidden_dim": 18_432,
        "num_dense": 3,
        "heads": {**_HEADS, "query_latent_dim": 1536},
        "expert_dim": 2048,
        "num_shared": 1,
        "experts": {"num_experts": 256, "top_k": 8},
        "routing": {"groups": GroupLimit(num_groups=8, num_kept=4)},
    },
    "toy": {
        **_TOY,
        "heads": {**_TOY["heads"], "query_latent_dim": 48},
        "experts": {"num_experts": 8, "top_k": 2},
        "routing": {"groups": GroupLimit(num_groups=4, num_kept=2)},
    },
}

KIMI_K2_SIZES: Sizes = {
    "1t": {
        "vocab_size": 163_840,
        "dim": 7168,
        "num_layers": 61,
        "num_heads": 64,
        "hidden_dim": 18_432,
        "num_dense": 1,
        "heads": {**_HEADS, "query_latent_dim": 1536},
        "expert_dim": 2048,
        "num_shared": 1,
        "experts": {"num_experts": 384, "top_k": 8},
    },
    "toy": {name: value for name, value in DEEPSEEK_V3_SIZES["toy"].items() if name != "routing"},
}


def deepseek_v2(size: str) -> CausalLM.Config:
    """Return the config of a DeepSeek-V2: `lite`, `236b` or `toy`.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2 and appendix B; routing as in the
    published configs.
    """
    sizes = dict(of_size("deepseek_v2", DEEPSEEK_V2_SIZES, size))
    router = Router.Config(is_normalized=False, balance_loss=0.001, **sizes.pop("routing"))
    return _deepseek(router=router, yarn_weight=0.707, **sizes)


def deepseek_v3(size: str) -> CausalLM.Config:
    """Return the config of a DeepSeek-V3: `671b` or `toy`; without the head for a second token.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, sections 2.1 and 4.2.
    """
    sizes = dict(of_size("deepseek_v3", DEEPSEEK_V3_SIZES, size))
    router = Router.Config(scale=2.5, **_V3_ROUTER, **sizes.pop("routing"))
    return _deepseek(router=router, yarn_weight=1.0, **sizes)


def kimi_k2(size: str) -> CausalLM.Config:
    """Return the config of a Kimi K2, which is a DeepSeek-V3 with more experts: `1t` or `toy`.

    Source: Kimi Team 2025, arXiv:2507.20534, table 2; positions as in the published configs.
    """
    sizes = dict(of_size("kimi_k2", KIMI_K2_SIZES, size))
    cfg = _deepseek(router=Router.Config(scale=2.827, **_V3_ROUTER), yarn_weight=1.0, **sizes)
    heads = sizes["heads"]
    scale = stretched_scale(32.0, weight=1.0, width=heads["head_dim"] + heads["rope_dim"])
    return update_config(
        cfg,
        {
            "**.position.theta": 50_000.0,
            "**.position.factor": 32.0,
            "**.position.beta_fast": 1.0,
            "**.core.scale": scale,
        },
    )


def _deepseek(
    *,
    router: Router.Config,
    yarn_weight: float,
    heads: Any,
    num_dense: int,
    expert_dim: int,
    num_shared: int,
    experts: Any,
    **sizes: Any,
) -> Any:
    cfg = replace_config(transformer(**sizes), Attention, _latent_attention(heads, yarn_weight))
    stack = cfg.decoder.stack
    mixed = replace_config(
        stack.layer,
        FeedForward,
        lambda ffn: MoE.Config(
            expert=evolve(ffn, hidden_dim=expert_dim),
            shared=evolve(ffn, hidden_dim=num_shared * expert_dim),
            router=router,
            **experts,
        ),
    )
    first = evolve(stack, num_layers=num_dense)
    rest = evolve(stack, num_layers=stack.num_layers - num_dense, layer=mixed)
    return update_config(cfg, {"decoder.stack": Sequence.Config(layers=(first, rest))})


def _latent_attention(heads: Any, yarn_weight: float) -> Any:
    """Return a function from an attention to a latent one, stretched to 40 times 4096 tokens.

    The attention factor is on all of the logits, not on the part with position only, so it is
    in their scale.
    """
    width = heads["head_dim"] + heads["rope_dim"]
    scale = stretched_scale(40.0, weight=yarn_weight, width=width)

    def latent(old: Any) -> Any:
        yarn = YaRN.Config(
            theta=old.position.theta, factor=40.0, original_length=4096, attention_factor=1.0
        )
        core = evolve(old.core, scale=scale)
        return LatentAttention.Config(num_heads=old.num_heads, position=yarn, core=core, **heads)

    return latent
