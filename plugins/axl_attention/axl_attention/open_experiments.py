"""The pre-training of families that came after this plugin's first ones, on a corpus of yours.

axcore train olmo2-7b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json

Each edits `llama2-7b`, as those in `experiments.py` do.
"""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.experiments import llama2_7b, mesh_rules
from axcore.learner import WarmupLinear, WarmupStableDecay
from axcore.modifiers import RematModifier
from axcore.module import DTypes
from axl_attention.models import (
    glm45,
    gpt_neox,
    granite,
    llama4,
    mamba2,
    olmo2,
    olmo3,
    phi3,
    qwen3_next,
    smollm3,
    starcoder2,
)


def olmo2_7b() -> Any:
    """Return OLMo 2 7B: 4T tokens, 1024 rows of 4096 a batch, large partition functions punished.

    Source: OLMo Team 2025, arXiv:2501.00656, sections 2 and 3. Differs: the rate falls to the end
    of the 4T tokens, where the paper cuts off a cosine of 5T.
    """
    model = update_config(olmo2("7b"), {"head.z_loss": 1e-5})
    changes = {"learner.optimizer.epsilon": 1e-8, "max_steps": 954_000}
    return _trained(model, "<|endoftext|>", changes, rows=(2, 4))


def granite_8b() -> Any:
    """Return Granite 3 8B: 12T tokens in rows of 4096.

    Source: IBM 2024, "Granite 3.0 Language Models", sections 2 and 3. Differs: the rate falls along
    a cosine, not by a power; there is one stage, not two.
    """
    return _trained(granite("8b"), "<|end_of_text|>", {"max_steps": 2_861_000}, rows=(2, 4))


def smollm3_3b() -> Any:
    """Return SmolLM3 3B: 11.2T tokens, 576 rows of 4096 a batch, a rate that falls at the end.

    Source: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner". Differs:
    rotary positions have the base of the published weights from the beginning.
    """
    steps = 4_747_000
    schedule = WarmupStableDecay.Config(peak=2e-4, warmup_steps=2000 / steps)
    changes = {"data.batch_size": 576, "learner.schedule": schedule, "max_steps": steps}
    return _trained(smollm3("3b"), "<|end_of_text|>", changes, rows=(2, 4))


def phi_4() -> Any:
    """Return Phi-4: 10T tokens, 5760 rows of 4096 a batch, a rate that falls on a line.

    Source: Abdin et al. 2024, arXiv:2412.08905, section 3.
    """
    changes = {
        "data.batch_size": 5760,
        "learner.schedule": WarmupLinear.Config(peak=3e-4, warmup_steps=2000 / 424_000),
        "max_steps": 424_000,
    }
    return _trained(phi3("4"), "<|endoftext|>", changes, rows=(1, 2))


def pythia_6_9b() -> Any:
    """Return Pythia 6.9B: 300B tokens, 1024 rows of 2048 a batch.

    Source: Biderman et al. 2023, arXiv:2304.01373, section 2.1 and appendix E.
    """
    changes = {
        "data.seq_len": 2048,
        "learner.optimizer.epsilon": 1e-8,
        "learner.optimizer.weight_decay": 0.01,
        "learner.schedule.peak": 1.2e-4,
        "learner.schedule.warmup_steps": 1430 / 143_000,
        "max_steps": 143_000,
    }
    cfg = _trained(gpt_neox("pythia-6.9b"), "<|endoftext|>", changes, rows=(4, 8))
    return replace_config(cfg, RematModifier, _of_every_layer)


def starcoder2_15b() -> Any:
    """Return StarCoder2 15B: 4.2T tokens in rows of 4096.

    Source: Lozhkov et al. 2024, arXiv:2402.19173, section 6.2 and table 7.
    """
    changes = {
        "learner.optimizer.epsilon": 1e-8,
        "learner.schedule.warmup_steps": 1000 / 1_000_000,
        "max_steps": 1_000_000,
    }
    return _trained(starcoder2("15b"), "<|endoftext|>", changes, rows=(1, 2))


def olmo3_7b() -> Any:
    """Return OLMo 3 7B: 5.9T tokens, 512 rows of 8192 a batch.

    Source: OLMo Team 2025, "Olmo 3", arXiv:2512.13961, section 3. Differs: as `olmo2-7b`; and the
    stretched positions of global layers are there from the beginning.
    """
    changes = {
        "data.seq_len": 8192,
        "data.batch_size": 512,
        "learner.schedule.warmup_steps": 2000 / 1_414_000,
        "max_steps": 1_414_000,
    }
    return update_config(olmo2_7b(), {"model": _in_bfloat16(olmo3("7b")), **changes})


def mamba2_2_7b() -> Any:
    """Return Mamba-2 2.7B: 300B tokens.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 9.2.
    """
    cfg = _trained(mamba2("2.7b"), "<|endoftext|>", {"max_steps": 71_500}, rows=(1, 2))
    return replace_config(cfg, RematModifier, _of_every_layer)


def llama4_scout() -> Any:
    """Return the text part of Llama 4 Scout: 40T tokens in rows of 4096.

    Source: Meta 2025, the model card of Llama 4. Differs: images are left out; the stretched
    positions are there from the beginning. Nothing else was published.
    """
    changes = {"data.tokenizer.bos_token": "<|begin_of_text|>", "max_steps": 9_537_000}
    return _trained(llama4("scout"), "<|end_of_text|>", changes, rows=(1, 2))


def qwen3_next_80b_a3b() -> Any:
    """Return Qwen3-Next 80B: 15T tokens in rows of 4096; no second token is predicted.

    Source: Qwen Team 2025, "Qwen3-Next: towards ultimate training and inference efficiency".
    """
    changes = {"max_steps": 3_576_000}
    return _trained(qwen3_next("80b-a3b"), "<|endoftext|>", changes, rows=(1, 2))


def glm45_air() -> Any:
    """Return GLM-4.5-Air: 22T tokens in rows of 4096.

    Source: GLM-4.5 Team 2025, arXiv:2508.06471, section 2. Differs: AdamW in the place of Muon; no
    second token is predicted.
    """
    changes = {"data.tokenizer.bos_token": "[gMASK]", "max_steps": 5_245_000}
    return _trained(glm45("air"), "<|endoftext|>", changes, rows=(1, 2))


def _trained(model: Any, end: str, changes: dict[str, Any], *, rows: tuple[int, int]) -> Any:
    """Return the training of a model in bfloat16.

    Args:
        model: Its config.
        end: What ends a document.
        changes: To `llama2-7b`.
        rows: How many are computed at a time on small and large devices.
    """
    (small, large), base = rows, llama2_7b()
    return update_config(
        base,
        {
            "model": _in_bfloat16(model),
            "learner.schedule.warmup_steps": 2000 / changes.get("max_steps", base.max_steps),
            "data.tokenizer.bos_token": None,
            "data.tokenizer.eos_token": end,
            "mesh_rules": mesh_rules(small_rows=small, large_rows=large),
            **changes,
        },
    )


def _of_every_layer(remat: Any) -> Any:
    """Return recomputation of a stack's layers, which it finds by itself in transformers only."""
    return evolve(remat, at="model.decoder.stack.layer")


def _in_bfloat16(model: Any) -> Any:
    return evolve(model, dtypes=DTypes(compute="bfloat16"))
