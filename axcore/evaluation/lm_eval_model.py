"""`lm_eval_model`: a model that answers questions as a backend of lm-eval's Python API.

lm-eval divides texts into tokens and windows by its own code; only tokens are asked here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from axcore.errors import ConfigError
from axcore.evaluation.engine_model import EngineModel
from axcore.evaluation.questions import Continuation, PendingReply
from axcore.evaluation.task_run import ANSWER_S
from axcore.extras import import_extra

MAX_TOKENS = 256
"""Tokens of an answer where a task of lm-eval does not say how many."""

_KNOWN = ("until", "max_gen_toks", "do_sample", "temperature")


class AxcoreLM:
    """What lm-eval asks of a model; `lm_eval_model` makes it a subclass of its `TemplateLM`.

    Args:
        model: What answers.
        timeout_s: Seconds after which an answer is given up.
    """

    def __init__(self, model: EngineModel, *, timeout_s: float = ANSWER_S) -> None:
        super().__init__()
        self._model, self._timeout_s = model, timeout_s

    @property
    def eot_token_id(self) -> int:
        """The token that ends texts."""
        return self._model.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What precedes a text that nothing precedes."""
        return self._model.first[0]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text, after the token that begins texts unless refused."""
        tokenizer = self._model.tokenizer
        encode = tokenizer.encode if add_special_tokens is False else tokenizer.encode_prompt
        return [int(one) for one in encode(string)]

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Return the log-probability of full texts, in the windows that lm-eval makes."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        pending = []
        for request in requests:
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._model.longest - 1,  # lm-eval counts without the last token
                context_len=1,
            )
            pending.append([self._model.score(*make_disjoint_window(one)) for one in windows])
        return [sum(one.reply(self._timeout_s).logprob for one in text) for text in pending]

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Return what the model writes after each context.

        Raises:
            ConfigError: A task sets what is not known here.
        """
        pending: list[PendingReply] = [
            self._model.ask(_continuation(*request.args)) for request in requests
        ]
        return [one.reply(self._timeout_s).text for one in pending]

    def _loglikelihood_tokens(
        self, requests: Iterable[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        pending = [self._model.score(context, scored) for _, context, scored in requests]
        found = [one.reply(self._timeout_s) for one in pending]
        return [(one.logprob, one.is_greedy) for one in found]


def lm_eval_model(model: EngineModel, *, timeout_s: float = ANSWER_S) -> Any:
    """Return what `lm_eval.simple_evaluate(model=...)` takes.

    Args:
        model: What answers.
        timeout_s: Seconds after which an answer is given up.

    Raises:
        ConfigError: lm-eval is not installed.
    """
    library = import_extra("lm_eval.api.model", used_by="lm_eval_model", error=ConfigError)
    return type("AxcoreLM", (AxcoreLM, library.TemplateLM), {})(model, timeout_s=timeout_s)


def _continuation(context: str, settings: Mapping[str, Any]) -> Continuation:
    """Return a question with the settings that a task of lm-eval has."""
    unknown = sorted(set(settings) - set(_KNOWN))
    if unknown:
        raise ConfigError(
            f"{unknown[0]} is {settings[unknown[0]]!r}; known are {', '.join(_KNOWN)}",
            where="generation_kwargs",
        )
    until = settings.get("until") or ()
    temperature = float(settings.get("temperature", 1.0)) if settings.get("do_sample") else 0.0
    return Continuation(
        prompt=context,
        max_tokens=settings.get("max_gen_toks", MAX_TOKENS),
        stop=(until,) if isinstance(until, str) else tuple(until),
        temperature=temperature,
    )
