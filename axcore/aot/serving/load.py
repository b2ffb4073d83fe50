"""`ServingLoad`: what is asked of a model that serves."""

import attrs

from axcore.errors import ConfigError
from axcore.inference import EngineConfig


@attrs.frozen(kw_only=True)
class ServingLoad:
    """An engine, and the texts that times are reported for.

    Args:
        engine: Its config, with `max_length`: each row has so many tokens in caches while it draws.
        prompt: Tokens of a prompt.
    """

    engine: EngineConfig
    prompt: int = 512

    def __attrs_post_init__(self) -> None:
        """Checks that times can be reported.

        Raises:
            ConfigError: The prompt does not fit, or the engine guesses tokens.
        """
        context = self.engine.max_length
        if context is None or not 1 <= self.prompt < context:
            raise ConfigError(
                f"a prompt of {self.prompt} tokens and one drawn token do not fit a context of "
                f"{context}",
                where="prompt",
                hint="--prompt or --context changes them",
            )
        if self.engine.speculation is not None:
            raise ConfigError(
                "how often guesses are right is not known before a model answers",
                where="engine.speculation",
                hint="leave it out, and measure guesses where the model runs",
            )

    @property
    def context(self) -> int:
        """Tokens of every row in caches while it draws."""
        assert self.engine.max_length is not None
        return self.engine.max_length
