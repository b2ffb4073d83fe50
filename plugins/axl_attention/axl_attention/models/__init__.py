"""Families of models that need variants of attention, each a function from a size to a config."""

from axl_attention.models.deepseek import deepseek_v2, deepseek_v3
from axl_attention.models.gemma2 import gemma2
from axl_attention.models.gemma3 import gemma3
from axl_attention.models.gpt2 import gpt2
from axl_attention.models.qwen3 import qwen3, qwen3_moe

__all__ = ["deepseek_v2", "deepseek_v3", "gemma2", "gemma3", "gpt2", "qwen3", "qwen3_moe"]
