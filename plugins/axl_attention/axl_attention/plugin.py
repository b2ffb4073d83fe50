"""What axl-attention brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import (
    Experiment,
    Feature,
    HuggingFaceFamily,
    LayerVariant,
    Ref,
    RopeScaling,
    hook,
)

_VARIANTS = (
    (
        "DotProductAttention",
        "sliding_window",
        "attention_cores",
        "Each token sees a fixed number of tokens before it",
    ),
    (
        "DotProductAttention",
        "chunked",
        "attention_cores",
        "Each token sees its own chunk of the document",
    ),
    (
        "DotProductAttention",
        "sinks",
        "attention_cores",
        "A learned logit per head that takes probability only",
    ),
    ("DotProductAttention", "soft_cap", "attention_cores", "Logits capped smoothly at 50"),
    (
        "DotProductAttention",
        "alibi",
        "attention_cores",
        "Logits fall with the distance, by a slope per head",
    ),
    ("RoPE", "partial_rotary", "positions", "Positions for a part of each head"),
    ("Attention", "query_key_norm", "norms", "Queries and keys normalised before their positions"),
    (
        "Attention",
        "latent_attention",
        "latent_attention",
        "Keys and values made from one short vector a token",
    ),
    ("Attention", "value_residual", "across_layers", "Values mixed with those of the first layer"),
    ("Embedding", "learned_position", "positions", "A learned vector for each position"),
    ("Embedding", "sinusoidal_position", "positions", "Waves of each position"),
    (
        "ScannedLayers",
        "shared_keys",
        "across_layers",
        "Every second layer uses the keys of the one before",
    ),
    ("PreNorm", "sandwich_norm", "norms", "A norm before and after each branch"),
)
"""The layer of the core that is replaced, the variant's name, the module that has its `with_NAME`,
and a summary."""

_CONFIGS = {
    "no_position": ("axcore.layers:NoPosition.Config", "Queries and keys as they are"),
    "linear_rope": ("axl_attention.rope_scaling:LinearRoPE.Config", "RoPE squeezed by a factor"),
    "ntk_rope": ("axl_attention.rope_scaling:NTKRoPE.Config", "RoPE of a larger base"),
    "yarn": ("axl_attention.rope_scaling:YaRN.Config", "RoPE stretched by how often a pair turns"),
    "llama3_rope": ("axl_attention.rope_scaling:Llama3RoPE.Config", "RoPE stretched by wavelength"),
}
"""Variants of `RoPE` that need nothing of what they replace but its fields: config and summary."""


@hook.layer_variants
def layer_variants() -> Iterator[LayerVariant]:
    """Variants of attention, of positions, and of what carries both."""
    targets = [
        (replaced, name, f"axl_attention.{module}:with_{name}", summary)
        for replaced, name, module, summary in _VARIANTS
    ]
    targets += [("RoPE", name, config, summary) for name, (config, summary) in _CONFIGS.items()]
    for replaced, name, config, summary in targets:
        yield LayerVariant(
            name=name,
            config=Ref(config),
            replaces=Ref(f"axcore.layers:{replaced}"),
            summary=summary,
        )


@hook.hugging_face_families
def hugging_face_families() -> Iterator[HuggingFaceFamily]:
    """Pretrained checkpoints that these layers make."""
    for name, family, summary in (
        ("gpt2", "gpt2:GPT2", "GPT-2"),
        ("deepseek_v2", "deepseek:DEEPSEEK_V2", "DeepSeek-V2"),
        ("deepseek_v3", "deepseek:DEEPSEEK_V3", "DeepSeek-V3 and R1"),
        ("deepseek_v32", "deepseek:DEEPSEEK_V32", "DeepSeek-V3.2, with sparse attention"),
        ("kimi_k2", "deepseek:KIMI_K2", "Kimi K2, which is written as deepseek_v3"),
        ("gemma", "gemma:GEMMA", "Gemma 1"),
        ("gemma2", "gemma:GEMMA2", "Gemma 2"),
        ("gemma3_text", "gemma:GEMMA3_TEXT", "Gemma 3, for text"),
        ("gemma3", "gemma:GEMMA3", "Gemma 3 with its vision tower, the text part of it"),
        ("granite", "granite:GRANITE", "Granite 3"),
        ("smollm3", "smollm3:SMOLLM3", "SmolLM3"),
        ("phi3", "phi3:PHI3", "Phi-3 and Phi-4"),
        ("gpt_neox", "gpt_neox:GPT_NEOX", "GPT-NeoX and Pythia"),
        ("starcoder2", "starcoder2:STARCODER2", "StarCoder2"),
        ("olmo3", "olmo:OLMO3", "OLMo 3"),
        ("mamba2", "mamba2:MAMBA2", "Mamba-2"),
        ("olmo2", "olmo:OLMO2", "OLMo 2"),
        ("llama4_text", "llama:LLAMA4_TEXT", "Llama 4, for text"),
        ("llama4", "llama:LLAMA4", "Llama 4 with its vision tower, the text part of it"),
        ("glm", "glm:GLM", "GLM-4"),
        ("glm4", "glm:GLM4", "GLM-4-0414"),
        ("glm4_moe", "glm:GLM4_MOE", "GLM-4.5, with experts"),
        ("glm4_moe_lite", "deepseek:GLM4_MOE_LITE", "GLM-4.7-Flash"),
        ("gpt_oss", "gpt_oss:GPT_OSS", "GPT-OSS"),
        ("qwen3_next", "qwen3_next:QWEN3_NEXT", "Qwen3-Next"),
        ("qwen3_5_text", "qwen3_next:QWEN3_5_TEXT", "Qwen3.5, dense, for text"),
        ("qwen3_5_moe_text", "qwen3_next:QWEN3_5_MOE_TEXT", "Qwen3.5 with experts, for text"),
        ("qwen3_5", "qwen3_next:QWEN3_5", "Qwen3.5 as published, the text part of it"),
        ("qwen3_5_moe", "qwen3_next:QWEN3_5_MOE", "Qwen3.5 with experts as published, the same"),
        ("qwen3", "qwen3:QWEN3", "Qwen3, dense"),
        ("qwen3_moe", "qwen3:QWEN3_MOE", "Qwen3 with experts"),
        ("olmoe", "olmo:OLMOE", "OLMoE"),
        ("qwen2_moe", "qwen2_moe:QWEN2_MOE", "Qwen1.5-MoE and Qwen2 with experts"),
        ("granitemoe", "granite:GRANITEMOE", "Granite 3 with experts"),
        ("granitemoehybrid", "granitemoehybrid:GRANITEMOEHYBRID", "Granite 4"),
        ("phi", "phi:PHI", "Phi-1, Phi-1.5 and Phi-2"),
        ("phimoe", "phimoe:PHIMOE", "Phi-3.5-MoE"),
        ("stablelm", "stablelm:STABLELM", "StableLM"),
        ("cohere", "cohere:COHERE", "Command R and Aya 23"),
        ("cohere2", "cohere:COHERE2", "Command R7B and Command A"),
        ("ministral3", "ministral3:MINISTRAL3", "Ministral 3, for text"),
        ("mistral3", "ministral3:MISTRAL3", "Ministral 3 as published, the text part of it"),
        ("minimax_m2", "minimax_m2:MINIMAX_M2", "MiniMax-M2"),
        ("falcon_h1", "falcon_h1:FALCON_H1", "Falcon-H1"),
        ("nemotron_h", "nemotron_h:NEMOTRON_H", "Nemotron-H, Nano 2 and Nano 3"),
        ("falcon", "falcon:FALCON", "Falcon"),
        ("mamba", "mamba:MAMBA", "Mamba"),
        ("gptj", "gptj:GPTJ", "GPT-J"),
        ("opt", "opt:OPT", "OPT"),
        ("bloom", "bloom:BLOOM", "BLOOM"),
    ):
        # Its experts' layers are those of Qwen3-Next, with the arrays stored otherwise.
        after = "qwen3_next" if name == "qwen3_5_moe_text" else ""
        yield HuggingFaceFamily(
            name=name, family=Ref(f"axl_attention.models.{family}"), after=after, summary=summary
        )


_LENGTH = {"factor": "factor", "original_max_position_embeddings": "original_length"}


@hook.rope_scalings
def rope_scalings() -> Iterator[RopeScaling]:
    """Scaled rotary positions, as published configs name them."""
    yield RopeScaling(
        name="llama3",
        config=Ref(_CONFIGS["llama3_rope"][0]),
        fields={
            **_LENGTH,
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
        },
        summary="Llama 3.1 and later",
    )
    yield RopeScaling(
        name="linear",
        config=Ref(_CONFIGS["linear_rope"][0]),
        fields={"factor": "factor"},
        summary="Positions divided by a factor",
    )
    yield RopeScaling(
        name="yarn",
        config=Ref(_CONFIGS["yarn"][0]),
        fields=_LENGTH,
        optional={
            **{name: name for name in ("attention_factor", "beta_fast", "beta_slow")},
            "truncate": "has_whole_bounds",
        },
        summary="YaRN",
    )
    yield RopeScaling(
        name="longrope",
        config=Ref("axl_attention.rope_scaling:LongRoPE.Config"),
        fields={
            "short_factor": "short_factors",
            "long_factor": "long_factors",
            "original_max_position_embeddings": "original_length",
            "attention_factor": "attention_factor",
        },
        summary="LongRoPE",
    )


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """The pre-training of models that need those variants."""
    for name, function, summary in (
        ("gpt2", "gpt2_small", "GPT-2, 124M parameters"),
        ("qwen3-8b", "qwen3_8b", "Qwen3 8B"),
        ("qwen3-30b-a3b", "qwen3_30b_a3b", "Qwen3 30B, with 128 experts a layer"),
        ("gemma-7b", "gemma_7b", "Gemma 7B"),
        ("gemma2-9b", "gemma2_9b", "Gemma 2 9B"),
        ("gemma3-4b", "gemma3_4b", "The text part of Gemma 3 4B"),
        ("deepseek-v2-lite", "deepseek_v2_lite", "DeepSeek-V2-Lite, 15.7B parameters"),
        ("deepseek-v3", "deepseek_v3_671b", "DeepSeek-V3, 671B parameters"),
        ("kimi-k2", "kimi_k2_1t", "Kimi K2, 1T parameters"),
        ("glm4-9b", "glm4_9b", "GLM-4-9B of April 2025"),
        ("gpt-oss-20b", "gpt_oss_20b", "GPT-OSS 20B, with 32 experts a layer"),
    ):
        yield Experiment(
            name=name, fn=Ref(f"axl_attention.experiments:{function}"), summary=summary
        )


_OPEN_EXPERIMENTS = {
    "granite-8b": "Granite 3 8B",
    "olmo2-7b": "OLMo 2 7B",
    "mamba2-2.7b": "Mamba-2 2.7B, which does not attend",
    "olmo3-7b": "OLMo 3 7B",
    "starcoder2-15b": "StarCoder2 15B",
    "pythia-6.9b": "Pythia 6.9B",
    "phi-4": "Phi-4, 14B parameters",
    "smollm3-3b": "SmolLM3 3B",
    "qwen3-next-80b-a3b": "Qwen3-Next 80B, which attends in one layer of four",
    "glm45-air": "GLM-4.5-Air, 107B parameters",
    "llama4-scout": "The text part of Llama 4 Scout, 109B parameters",
}
"""Summaries by name; a function's name has `_` for other signs."""


@hook.experiments
def open_experiments() -> Iterator[Experiment]:
    """The pre-training of more models that need those variants."""
    for name, summary in _OPEN_EXPERIMENTS.items():
        function = name.replace("-", "_").replace(".", "_")
        yield Experiment(
            name=name, fn=Ref(f"axl_attention.open_experiments:{function}"), summary=summary
        )


_FEATURES = {
    "yarn": "Rotary positions stretched to longer rows",
    "latent_attention": "Keys and values from one short vector a token",
    "latent_cache": "Serving keeps that vector, and no keys and values",
    "shared_cache": "Serving keeps the keys of every two layers once",
    "state_cache": "Serving keeps the state of a recurrence, and no keys and values",
    "sliding_window": "Each token sees a few before it",
    "sinks": "A learned sink for every head",
    "query_key_norm": "Queries and keys normalised",
    "value_residual": "Cross-layer: values mixed with those of the first layer",
}
"""Features whose cost is measured, by name, each with a summary."""

_IMPLEMENTATIONS = {
    "yarn": tuple(f"rope_scaling:{own}" for own in ("YaRN", "_share_slowed", "_pair_that_turns")),
    "latent_attention": ("latent_attention", "sparse_attention"),
    "latent_cache": ("latent_attention", "sparse_attention"),
    "shared_cache": ("across_layers",),
    "state_cache": ("mamba", "mamba2", "gated_delta_net", "recurrence", "multipliers"),
    "sliding_window": (
        "attention_cores:SlidingWindowAttention",
        "attention_cores:with_sliding_window",
    ),
    "sinks": ("attention_cores:AttentionSinks", "attention_cores:with_sinks"),
    "query_key_norm": ("norms:QueryKeyNorm", "norms:with_query_key_norm"),
    "value_residual": ("across_layers:ValueResidual", "across_layers:with_value_residual"),
}
"""The modules of each feature, or its classes where a module has others too."""

_VARIANT_OF = {
    **dict.fromkeys(("latent_cache", "shared_cache", "state_cache"), "kv_cache"),
    "yarn": "rope",
}
"""What features are variants of, by their names."""


@hook.features
def features() -> Iterator[Feature]:
    """What these variants add to any model."""
    for name, summary in _FEATURES.items():
        yield Feature(
            name=name,
            apply=Ref(f"axl_attention.features:with_{name}"),
            evidence=Ref(f"axl_attention.features:has_{name}"),
            implementation=tuple(f"axl_attention.{own}" for own in _IMPLEMENTATIONS[name]),
            variant_of=_VARIANT_OF.get(name, ""),
            summary=summary,
        )
