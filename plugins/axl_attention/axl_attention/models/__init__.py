"""Families of models that need variants of attention, each a function from a size to a config."""

from axl_attention.models.bloom import bloom
from axl_attention.models.cohere import cohere, cohere2
from axl_attention.models.deepseek import (
    deepseek_v2,
    deepseek_v3,
    deepseek_v32,
    glm47_flash,
    kimi_k2,
)
from axl_attention.models.falcon import falcon
from axl_attention.models.falcon_h1 import falcon_h1
from axl_attention.models.gemma import gemma, gemma2, gemma3
from axl_attention.models.glm import glm, glm4, glm45
from axl_attention.models.gpt2 import gpt2
from axl_attention.models.gpt_neox import gpt_neox
from axl_attention.models.gpt_oss import gpt_oss
from axl_attention.models.gptj import gptj
from axl_attention.models.granite import granite, granitemoe
from axl_attention.models.granitemoehybrid import granite4
from axl_attention.models.llama import llama4, llama31, llama32
from axl_attention.models.mamba import mamba
from axl_attention.models.mamba2 import mamba2
from axl_attention.models.minimax_m2 import minimax_m2
from axl_attention.models.ministral3 import ministral3
from axl_attention.models.nemotron_h import nemotron_h
from axl_attention.models.olmo import olmo2, olmo3, olmoe
from axl_attention.models.opt import opt
from axl_attention.models.phi import phi
from axl_attention.models.phi3 import phi3
from axl_attention.models.phimoe import phimoe
from axl_attention.models.qwen2_moe import qwen2_moe
from axl_attention.models.qwen3 import qwen3, qwen3_moe
from axl_attention.models.qwen3_next import qwen3_5, qwen3_next
from axl_attention.models.smollm3 import smollm3
from axl_attention.models.stablelm import stablelm
from axl_attention.models.starcoder2 import starcoder2

__all__ = [
    "bloom",
    "cohere",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "falcon",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3",
    "glm",
    "glm4",
    "glm45",
    "glm47_flash",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granite4",
    "granitemoe",
    "kimi_k2",
    "llama4",
    "llama31",
    "llama32",
    "mamba",
    "mamba2",
    "minimax_m2",
    "ministral3",
    "nemotron_h",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "phimoe",
    "qwen2_moe",
    "qwen3",
    "qwen3_5",
    "qwen3_moe",
    "qwen3_next",
    "smollm3",
    "stablelm",
    "starcoder2",
]
