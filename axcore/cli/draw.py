"""Drawing text from the model of a trainer, by the kernels that it was trained with."""

from typing import Any

from axcore.inference import Generation, Generator
from axcore.ops import use_policy


def draw(trainer: Any, model_state: Any, prompt: str, **options: Any) -> tuple[Generation, ...]:
    """Returns continuations of a prompt; the options are those of `Generator.generate`."""
    generator = Generator(
        trainer.model,
        model_state,
        trainer.data.tokenizer,
        context=trainer.config.data.seq_len,
    )
    with use_policy(trainer.kernel_policy):
        return generator.generate(prompt, **options)
