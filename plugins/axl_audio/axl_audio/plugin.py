"""What axl-audio brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import Experiment, Ref, hook


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """Models of sound that can be trained."""
    for name, function, summary in (
        (
            "spoken-digits",
            "spoken_digits",
            "A small CTC model that writes down spoken digits; minutes on a laptop",
        ),
    ):
        yield Experiment(name=name, fn=Ref(f"axl_audio.experiments:{function}"), summary=summary)
