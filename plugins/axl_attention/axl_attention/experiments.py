"""The pre-training of this plugin's families, on a corpus and a tokenizer of yours.

axcore train qwen3-8b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json

Each edits `llama2-7b`: batches of 4M tokens, AdamW, a cosine, and layouts by hardware. What a paper
says about its own training replaces it; the rest has no assumptions.
"""

from typing import Any

from axcore.config import evolve, update_config
from axcore.experiments import llama2_7b, mesh_rules
from axcore.modifiers import Kernels
from axcore.module import DTypes
from axl_attention.models import (
    deepseek_v2,
    deepseek_v3,
    gemma,
    gemma2,
    gemma3,
    glm4,
    gpt2,
    gpt_oss,
    kimi_k2,
    qwen3,
    qwen3_moe,
)


def gpt2_small() -> Any:
    """Return GPT-2's smallest model and its batch: 512 rows of 1024 tokens.

    Every device holds all of it: there is no need to split a model of this size.

    The rest of its training was not published; rates and steps are those of GPT-3's model of the
    same size, 300B tokens in all: Brown et al. 2020, arXiv:2005.14165, table 2.1 and appendix B.
    """
    return _trained(
        gpt2("small"),
        {
            **_tokens(None, "<|endoftext|>"),
            "data.seq_len": 1024,
            "data.batch_size": 512,
            "learner.optimizer.epsilon": 1e-8,
            "learner.schedule.peak": 6e-4,
            "learner.schedule.warmup_steps": 715 / 572_000,
            "max_steps": 572_000,
            "mesh_rules": tuple(
                evolve(rule, mesh={"data": -1}) for rule in mesh_rules(small_rows=16, large_rows=64)
            ),
        },
    )


def qwen3_8b() -> Any:
    """Return Qwen3-8B: 30T tokens in rows of 4096.

    Source: Yang et al. 2025, arXiv:2505.09388, section 3.2 (the first stage).
    """
    return _trained(
        qwen3("8b"), {**_tokens(None, "<|endoftext|>"), "max_steps": 7_150_000, **_rows(2, 4)}
    )


def qwen3_30b_a3b() -> Any:
    """Return Qwen3-30B-A3B, trained as `qwen3-8b`."""
    model = evolve(qwen3_moe("30b-a3b"), dtypes=DTypes(compute="bfloat16"))
    return update_config(qwen3_8b(), {"model": model, **_rows(1, 2)})


def gemma_7b() -> Any:
    """Return Gemma 7B: 6T tokens in rows of 8192.

    Source: Gemma Team 2024, arXiv:2403.08295, sections 2 and 3.
    """
    return _trained(
        gemma("7b"),
        {
            **_tokens("<bos>", "<eos>"),
            "data.seq_len": 8192,
            "data.batch_size": 512,
            "max_steps": 1_431_000,
            **_rows(1, 2),
        },
    )


def gemma2_9b() -> Any:
    """Return Gemma 2 9B: 8T tokens in rows of 8192.

    Source: Gemma Team 2024, arXiv:2408.00118, sections 2 and 3.1. Differs: the paper's model learns
    from a larger one's probabilities; this learns from the text.

    No kernel for GPUs caps logits, so that there the portable one is let in.
    """
    on_gpu = Kernels(allow=("portable",))
    return _trained(
        gemma2("9b"),
        {
            **_tokens("<bos>", "<eos>"),
            "data.seq_len": 8192,
            "data.batch_size": 512,
            "max_steps": 1_907_000,
            "mesh_rules": tuple(
                evolve(rule, modifiers=(*rule.modifiers, on_gpu)) if "gpu" in rule.match else rule
                for rule in mesh_rules(small_rows=1, large_rows=2)
            ),
        },
    )


def gemma3_4b() -> Any:
    """Return the text part of Gemma 3 4B: 4T tokens in rows of 32,768.

    Source: Gemma Team 2025, arXiv:2503.19786, sections 2 and 2.2. Differs: as `gemma2-9b`; and the
    stretched positions of global layers are there from the beginning.
    """
    return _trained(
        gemma3("4b"),
        {
            **_tokens("<bos>", "<eos>"),
            "data.seq_len": 32_768,
            "data.batch_size": 128,
            "max_steps": 954_000,
            **_rows(1, 1),
        },
    )


def deepseek_v2_lite() -> Any:
    """Return DeepSeek-V2-Lite: 5.7T tokens, 4608 rows of 4096 tokens a batch.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, appendix B. Differs: the rate falls along a cosine,
    not by steps; the stretched positions are there from the beginning.
    """
    return _trained(
        deepseek_v2("lite"),
        {
            **_DEEPSEEK_TOKENS,
            "data.batch_size": 4608,
            "learner.optimizer.epsilon": 1e-8,
            "learner.schedule.peak": 4.2e-4,
            "max_steps": 302_000,
            **_rows(1, 4),
        },
    )


def deepseek_v3_671b() -> Any:
    """Return DeepSeek-V3: 14.8T tokens, 15,360 rows of 4096 tokens a batch.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 4.2. Differs: as `deepseek-v2-lite`; the
    batch does not grow; no second token is predicted; the routers' biases move to the end.
    """
    return _trained(
        deepseek_v3("671b"),
        {
            **_DEEPSEEK_TOKENS,
            "data.batch_size": 15_360,
            "learner.optimizer.epsilon": 1e-8,
            "learner.schedule.peak": 2.2e-4,
            "max_steps": 235_000,
            **_rows(1, 1),
        },
    )


def kimi_k2_1t() -> Any:
    """Return Kimi K2: 15.5T tokens, 16,384 rows of 4096 tokens a batch.

    Source: Kimi Team 2025, arXiv:2507.20534, section 2.5. Differs: as `deepseek-v3`; AdamW in the
    place of MuonClip.
    """
    return _trained(
        kimi_k2("1t"),
        {
            **_tokens("[BOS]", "[EOS]"),
            "data.batch_size": 16_384,
            "learner.schedule.peak": 2e-4,
            "max_steps": 231_000,
            **_rows(1, 1),
        },
    )


def glm4_9b() -> Any:
    """Return GLM-4-9B-0414 in rows of 4096; of its training nothing was published."""
    return _trained(glm4("9b"), {**_tokens("[gMASK]", "<|endoftext|>"), **_rows(2, 4)})


def gpt_oss_20b() -> Any:
    """Return GPT-OSS 20B in rows of 4096, the length that its positions are stretched from.

    Of its training nothing else was published.
    """
    return _trained(gpt_oss("20b"), {**_tokens(None, "<|endoftext|>"), **_rows(1, 4)})


def _trained(model: Any, changes: dict[str, Any]) -> Any:
    in_bfloat16, base = evolve(model, dtypes=DTypes(compute="bfloat16")), llama2_7b()
    warmup = 2000 / changes.get("max_steps", base.max_steps)
    changes = {"model": in_bfloat16, "learner.schedule.warmup_steps": warmup, **changes}
    return update_config(base, changes)


def _tokens(first: str | None, last: str) -> dict[str, Any]:
    """Return the changes that name a document's first and last token."""
    return {"data.tokenizer.bos_token": first, "data.tokenizer.eos_token": last}


def _rows(small: int, large: int) -> dict[str, Any]:
    """Return the change to layouts with so many rows at a time on small and large devices."""
    return {"mesh_rules": mesh_rules(small_rows=small, large_rows=large)}


_DEEPSEEK_TOKENS = _tokens(
    "<｜begin▁of▁sentence｜>",  # noqa: RUF001 - as its tokenizer has them
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
)
