"""Every feed-forward of any model becomes eight experts: ten lines, and no other line knows.

Run it: it does so to three families, then trains one for a few steps.
"""

from pathlib import Path
from typing import Any

import axcore
from axcore.config import replace_config, update_config
from axcore.data import TextFiles
from axcore.experiments.tiny import tiny
from axcore.layers import FeedForward, MoE
from axcore.models import llama3, mistral, qwen2
from axcore.module import count_params


def with_experts(cfg: Any) -> Any:
    """Returns any config with eight experts, two for each token, for each feed-forward in it."""
    return replace_config(
        cfg,
        FeedForward,
        lambda ffn: MoE.Config(expert=ffn, num_experts=8, top_k=2),
    )


def small(cfg: Any) -> Any:
    """Returns `tiny` for a minute on a laptop: shorter, and on axcore's own source."""
    source = TextFiles.Config(folder=str(Path(axcore.__file__).parent), glob="**/*.py")
    return update_config(
        cfg,
        {
            "model.dim": 64,
            "model.decoder.stack.num_layers": 2,
            "**.hidden_dim": 64,
            "data.source": source,
            "data.seq_len": 64,
            "data.batch_size": 4,
            "data.validation_batches": 2,
            "**.warmup_steps": 4,
            "max_steps": 20,
        },
    )


def main(directory: str) -> None:
    """Counts parameters with and without experts, and trains."""
    for family, size in ((llama3, "8b"), (mistral, "7b"), (qwen2, "7b")):
        cfg = family(size)
        sizes = [count_params(one.build().param_specs()) / 1e9 for one in (cfg, with_experts(cfg))]
        print(f"{family.__name__} {size}: {sizes[0]:.1f}B parameters, with experts {sizes[1]:.1f}B")
    result = small(with_experts(tiny())).build().run(directory)
    print(f"validation loss after {result.step} steps: {result.validation['loss']:.2f} nats a byte")


if __name__ == "__main__":
    main("runs/experts")
