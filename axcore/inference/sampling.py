"""`Sampling`: how the next token is drawn from logits."""

import math

from axcore.config import config
from axcore.errors import ConfigError

MAX_BIASES = 300
"""Number of tokens that one request may give a bias."""

_RANGES = {
    "temperature": (0.0, math.inf, "0 takes the likeliest token, 1 draws as the model says"),
    "top_p": (math.ulp(0.0), 1.0, "1 draws from all tokens"),
    "min_p": (0.0, 1.0, "0 draws from all tokens"),
    "repetition_penalty": (math.ulp(0.0), math.inf, "1 changes nothing"),
    "presence_penalty": (-2.0, 2.0, "0 changes nothing"),
    "frequency_penalty": (-2.0, 2.0, "0 changes nothing"),
}
"""The smallest and the largest value of each number, and a hint."""


@config
class Sampling:
    """Describes how tokens are drawn.

    Logits are changed in this order: penalties, bias, tokens that are not allowed, temperature,
    top-k, top-p, min-p. Each of the last three sees what the one before it left.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Number of likeliest tokens to draw from, and those as likely as the last of them;
            None draws from all.
        top_p: Draws from the fewest likeliest tokens whose probabilities add up to this.
        min_p: Draws from tokens that are at least this many times as likely as the likeliest.
        repetition_penalty: Divides positive logits of tokens that are in the prompt or in the
            answer so far, and multiplies negative ones.
        presence_penalty: Is subtracted from the logit of each token in the answer so far.
        frequency_penalty: Is subtracted as often as the answer so far has the token.
        logit_bias: Tokens, and the number that is added to the logit of each.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def check(self, vocab_size: int | None = None) -> None:
        """Raises ConfigError where a value makes no sense.

        Args:
            vocab_size: Number of tokens that there are; None leaves the tokens unchecked.
        """
        for name, (lowest, highest, hint) in _RANGES.items():
            value = getattr(self, name)
            if not (lowest <= value <= highest and math.isfinite(value)):
                raise ConfigError(
                    f"{name} is {value}; expected {_range_text(lowest, highest)}", hint=hint
                )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(
                f"top_k is {self.top_k}; expected 1 or more", hint="None draws from all tokens"
            )
        self._check_bias(vocab_size)

    @property
    def has_penalties(self) -> bool:
        """Whether draws depend on the tokens before."""
        return self.has_counted_penalties or self.repetition_penalty != 1

    @property
    def has_counted_penalties(self) -> bool:
        """Whether draws depend on how often the answer has a token."""
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def is_plain(self) -> bool:
        """Whether the temperature alone changes the logits."""
        unfiltered = self.top_k is None and self.top_p == 1 and self.min_p == 0
        return (unfiltered or self.temperature == 0) and not (self.has_penalties or self.logit_bias)

    def _check_bias(self, vocab_size: int | None) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise ConfigError(
                f"logit_bias has {len(self.logit_bias)} tokens; expected at most {MAX_BIASES}",
                hint="allow or forbid many tokens by a grammar",
            )
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise ConfigError(
                f"logit_bias names a token twice: {[token for token, _ in self.logit_bias]}",
                hint="give each token one bias",
            )
        for token, bias in self.logit_bias:
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                known = "" if vocab_size is None else f" and less than {vocab_size}"
                raise ConfigError(
                    f"logit_bias names token {token}; expected 0 or more{known}",
                    hint="give numbers of tokens, as the tokenizer encodes them",
                )
            if not -100 <= bias <= 100:
                raise ConfigError(
                    f"logit_bias of token {token} is {bias}; expected -100 to 100",
                    hint="-100 forbids a token in practice",
                )


def _range_text(lowest: float, highest: float) -> str:
    start = "above 0" if lowest == math.ulp(0.0) else f"{lowest:g}"
    if highest == math.inf:
        return f"a finite number {start if lowest else 'of 0 or more'}"
    return f"{start} and at most {highest:g}" if start == "above 0" else f"{start} to {highest:g}"
