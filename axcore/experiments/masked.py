"""`tiny-bert`: a small ModernBERT that fills in hidden bytes of Python's own standard library."""

from axcore.config import evolve, update_config
from axcore.experiments.tiny import tiny
from axcore.models import modernbert
from axcore.tasks import MaskedTokens
from axcore.trainer import Trainer


def tiny_bert() -> Trainer.Config:
    """Return `tiny` with an encoder that sees both sides of what it predicts."""
    cfg = update_config(
        tiny(),
        {
            "learner.schedule.peak": 3e-3,
            "max_steps": 300,
            "eval_every_steps": 100,
            "data.batch_size": 16,
            "prompt": "",
        },
    )
    return evolve(
        cfg,
        model=update_config(modernbert("toy"), {"dim": 96, "**.hidden_dim": 192}),
        # Bytes are below 256; the tokenizer's special tokens follow them, and 259 is unused.
        task=MaskedTokens.Config(mask_token=259, special_tokens=(256, 257, 258), num_random=256),
    )
