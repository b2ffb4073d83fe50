"""`qwen2-7b`, on a corpus and a tokenizer of yours.

axcore train qwen2-7b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json
"""

from axcore.config import evolve, update_config
from axcore.experiments.llama2 import llama2_7b
from axcore.models import qwen2
from axcore.module import DTypes
from axcore.trainer import Trainer


def qwen2_7b() -> Trainer.Config:
    """Returns `llama2-7b` with another model; documents have no token before their first.

    Optimizer, schedule and batch are Llama 2's: Qwen2's were not published.
    """
    return update_config(
        llama2_7b(),
        {
            "model": evolve(qwen2("7b"), dtypes=DTypes(compute="bfloat16")),
            "data.tokenizer.bos_token": None,
            "data.tokenizer.eos_token": "<|endoftext|>",
        },
    )
