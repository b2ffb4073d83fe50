"""`ServerConfig`: how a model is served."""

from collections.abc import Mapping

from axcore.config import NonNegativeFloat, PositiveFloat, config
from axcore.inference import EngineConfig
from axcore.serving.limits import Limits


@config
class ServerConfig:
    """Describes a server; `axcore serve --set PATH=VALUE` changes it.

    Attributes:
        mesh: Sizes by mesh axis of the devices that the weights are split over, as `{"model": 2}`;
            -1 takes all. None takes as few as hold the weights in half of their memory.
        engine: How many answers are drawn at once, and in which pieces.
        limits: What requests may ask.
        drain_s: Seconds that requests have to finish when the server is asked to end.
        watch_s: Seconds between looks for newer checkpoints of a run.
        seed: What the draws of requests without a seed follow from, in the order in which they
            come; None draws differently each time the server starts.
    """

    mesh: Mapping[str, int] | None = None
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    drain_s: NonNegativeFloat = 60.0
    watch_s: PositiveFloat = 10.0
    seed: int | None = None
