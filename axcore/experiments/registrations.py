"""The experiments that the core alone can train."""

from collections.abc import Iterator

from axcore.plugins import Experiment, Ref, hook


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """What can be trained with the core alone."""
    yield Experiment(
        name="tiny",
        fn=Ref("axcore.experiments.tiny:tiny"),
        summary="0.9M parameters on the bytes of Python's standard library; minutes on a laptop",
    )
    yield Experiment(
        name="tiny-bert",
        fn=Ref("axcore.experiments.masked:tiny_bert"),
        summary="0.4M parameters that fill in hidden bytes; minutes on a laptop",
    )
    for name, function, summary in (
        ("llama2-7b", "llama2_7b", "Llama 2 of 6.7B parameters; batches of 4M tokens"),
        ("llama2-70b", "llama2_70b", "Llama 2 of 69B parameters; batches of 4M tokens"),
        ("llama3-8b", "llama3_8b", "Llama 3 of 8.0B parameters; batches of 8M tokens"),
        ("llama3-70b", "llama3_70b", "Llama 3 of 70.6B parameters; batches of 8M tokens"),
        ("mistral-7b", "mistral_7b", "Mistral of 7.2B parameters; batches of 4M tokens"),
        ("mixtral-8x7b", "mixtral_8x7b", "Mixtral of 46.7B parameters, 12.9B at work"),
        ("qwen2-7b", "qwen2_7b", "Qwen2 of 7.6B parameters; batches of 4M tokens"),
    ):
        fn = Ref(f"axcore.experiments.pretraining:{function}")
        yield Experiment(name=name, fn=fn, summary=summary)
