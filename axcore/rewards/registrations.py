"""The rewards of the core."""

from collections.abc import Iterator

from axcore.plugins import Ref, RewardFunction, hook


@hook.rewards
def rewards() -> Iterator[RewardFunction]:
    """What a completion is worth, by name."""
    for name, config, summary in (
        ("exact_match", "ExactMatch", "1 where the completion is the answer"),
        ("characters", "MatchingCharacters", "The share of characters that are the answer's"),
        ("numeric", "NumericAnswer", "1 where the final number is the answer's"),
        ("regex", "RegexMatch", "1 where a pattern is found, for formats"),
        ("overlong", "OverlongPenalty", "From 0 down to -1 for completions that are too long"),
        ("field", "FieldValue", "The number in a field, as an environment writes one"),
        ("code", "CodeTests", "What a program passes of the prompt's tests, in the sandbox"),
        ("reward_model", "ModelReward", "The score of a run of `axcore train reward-model`"),
        ("judge", "Judge", "The score of a model that is asked over HTTP"),
    ):
        ref = Ref(f"axcore.rewards:{config}.Config")
        yield RewardFunction(name=name, config=ref, summary=summary)
