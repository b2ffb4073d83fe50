"""What an engine refuses: requests that can never be answered, configs that cannot work."""

import attrs

from axcore.data import Tokenizer
from axcore.errors import ConfigError, RequestError
from axcore.inference.config import EngineConfig
from axcore.inference.device_calls import MAX_LOGPROBS
from axcore.inference.drawing import DrawKind, kind_for
from axcore.inference.request import Request
from axcore.inference.sampling import Sampling
from axcore.inference.speculation import Draft, DraftModel

MAX_PRIORITY = 1_000_000
"""So that places in the order of requests are whole numbers of 64 bits."""

KIND_ORDER: tuple[DrawKind, ...] = ("greedy", "plain", "full")
"""What programs can draw; each does all that those before it do."""


@attrs.frozen(kw_only=True)
class Accepted:
    """What requests an engine can answer.

    Args:
        num_tokens: Tokens that the model knows.
        num_text_tokens: Those of them that the tokenizer knows.
        max_length: Tokens of prompt and answer at most.
        page_size: Tokens of a page.
        num_pages: Pages there are.
        kinds: What programs can draw, the cheapest first.
        draws_one_by_one: Whether a token can be known before the next is drawn.
    """

    num_tokens: int
    num_text_tokens: int
    max_length: int
    page_size: int
    num_pages: int
    kinds: tuple[DrawKind, ...]
    draws_one_by_one: bool

    def check(self, request: Request) -> None:
        """Refuses a request that can never be answered.

        Raises:
            RequestError: Saying what in it is wrong.
        """
        self._check_size(request)
        if abs(request.priority) > MAX_PRIORITY:
            raise RequestError(
                f"priority is {request.priority}; expected {-MAX_PRIORITY} to {MAX_PRIORITY}",
                where="priority",
            )
        number = request.num_logprobs
        if number is not None and not 0 <= number <= MAX_LOGPROBS:
            raise RequestError(
                f"num_logprobs is {number}; expected 0 to {MAX_LOGPROBS}", where="num_logprobs"
            )
        try:
            request.sampling.check(self.num_text_tokens)
        except ConfigError as error:
            raise RequestError(error.what, where="sampling", hint=error.hint) from error
        kind_index(request.sampling, self.kinds)
        if request.grammar is not None and not self.draws_one_by_one:
            raise RequestError(
                "an engine of fixed_shapes draws several tokens in a call, and a grammar needs "
                "each before the next",
                where="grammar",
                hint="set fixed_shapes to False",
            )

    def _check_size(self, request: Request) -> None:
        size, known = len(request.prompt), self.num_tokens
        if not size:
            raise RequestError("the prompt has no token", where="prompt")
        wrong = next((token for token in request.prompt if not 0 <= token < known), None)
        if wrong is not None:
            raise RequestError(
                f"the prompt has token {wrong}; the model knows {known} tokens, 0 the first",
                where="prompt",
            )
        if request.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {request.max_tokens}; expected 1 or more", where="max_tokens"
            )
        if size + request.max_tokens > self.max_length:
            raise RequestError(
                f"the prompt has {size} tokens, and max_tokens is {request.max_tokens}: together "
                f"more than {self.max_length}, the longest text",
                where="max_tokens",
                hint="shorten the prompt, or ask for fewer tokens",
            )
        needed = -(-(size + request.max_tokens) // self.page_size)
        if needed > self.num_pages:
            raise RequestError(
                f"prompt and answer need {needed} pages; there are {self.num_pages}",
                where="max_tokens",
                hint="ask for fewer tokens, or give the engine more pages by num_pages",
            )


def kind_index(sampling: Sampling, kinds: tuple[DrawKind, ...]) -> int:
    """Returns the place of the first kind of program that can draw so.

    Raises:
        RequestError: None can.
    """
    needed = kind_for([sampling])
    for place, kind in enumerate(kinds):
        if KIND_ORDER.index(kind) >= KIND_ORDER.index(needed):
            return place
    raise RequestError(
        f"this engine draws {' or '.join(kinds)}, and the request needs {needed!r}",
        where="sampling",
        hint="draw by the likeliest token or by a temperature alone, or change draw_kinds",
    )


def check_draft(cfg: EngineConfig, draft: Draft | None, tokenizer: Tokenizer) -> None:
    """Refuses a draft model that nobody asked for, a missing one, and one of other tokens.

    Raises:
        ConfigError: Saying why.
    """
    is_wanted = isinstance(cfg.speculation, DraftModel)
    if is_wanted and draft is None:
        raise ConfigError(
            "tokens are to be guessed by a draft model, and there is none",
            where="speculation",
            hint="give the engine one: Engine(..., draft=Draft(...)), axcore serve --draft DIR",
        )
    if draft is None:
        return
    if not is_wanted:
        raise ConfigError(
            f"there is a draft model, and speculation is {cfg.speculation}",
            where="speculation",
            hint="set it to DraftModel(), or leave the draft out",
        )
    draft.check_tokenizer(tokenizer)


def check_speculation(
    cfg: EngineConfig, *, keeps_pages_only: bool, draft: Draft | None = None
) -> None:
    """Refuses guesses where a wrong one could not be taken back.

    Raises:
        ConfigError: Saying why.
    """
    if cfg.speculation is None:
        return
    cfg.speculation.check()
    reason = None
    if cfg.fixed_shapes:
        reason = "calls of fixed shapes draw a fixed number of tokens"
    elif not keeps_pages_only:
        where = "the model" if draft is None else "the model or of its draft"
        reason = f"a layer of {where} keeps a state, or a row of its own, which has no way back"
    if reason is not None:
        raise ConfigError(
            f"tokens cannot be guessed ahead: {reason}",
            where="speculation",
            hint="leave speculation None, or keep keys and values in pages",
        )
