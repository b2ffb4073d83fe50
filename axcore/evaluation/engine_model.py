"""`EngineModel`: questions as requests to an engine, which answers many at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from axcore.errors import ConfigError, RequestError
from axcore.evaluation.questions import Continuation, Likelihood, Question, Scored, Written
from axcore.inference import Completion, CompletionStream, Engine, EngineConfig, Request, Sampling
from axcore.runs import OpenedModel, engine_for

GREEDY = Sampling(temperature=0)


class EngineModel:
    """A model that an engine runs.

    Args:
        engine: What samples tokens.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.tokenizer = engine, engine.tokenizer
        self.longest = engine.max_length - 1
        """Tokens of a text that is scored: the engine samples one more."""

    def ask(self, question: Question) -> "PendingScore | PendingText":
        """Take a question; return at once.

        Raises:
            ConfigError: It can never be answered.
        """
        try:
            if isinstance(question, Continuation):
                return self._write(question)
            if isinstance(question, Likelihood):
                return self.score(*self.encode_pair(question))
            return self._score_text(question.text)
        except RequestError as error:
            raise ConfigError(error.what, where=error.where, hint=error.hint) from error

    def score(self, context: Sequence[int], continuation: Sequence[int]) -> "PendingScore":
        """Ask how likely tokens are after others; the first of these are cut where too long."""
        tokens = (*context, *continuation)
        kept = tokens[-self.longest :]
        num_scored = min(len(continuation), len(kept) - 1)
        answer = self._scores(kept)
        return PendingScore((_Window(answer, num_scored),), num_cut=len(tokens) - len(kept))

    def encode_pair(self, question: Likelihood) -> tuple[list[int], list[int]]:
        """Return the tokens of context and continuation.

        They are divided where the tokens of the context alone end, after spaces at its end were
        moved to the continuation, as tokenizers put spaces before words.
        """
        context = question.context.rstrip()
        continuation = question.context[len(context) :] + question.continuation
        if not context:
            return self.first, self.tokenizer.encode(continuation).tolist()
        before = self.tokenizer.encode_prompt(context).tolist()
        whole = self.tokenizer.encode_prompt(context + continuation).tolist()
        return before, whole[len(before) :]

    @property
    def first(self) -> list[int]:
        """What precedes a text that nothing precedes."""
        first = self.tokenizer.bos_id
        return [self.tokenizer.eos_id if first is None else first]

    def _score_text(self, text: str) -> "PendingScore":
        """Ask for a text in windows, of which each begins with the last token of the one before.

        Every token is scored once, the first one after the token that begins texts.
        """
        tokens = self.first + self.tokenizer.encode(text).tolist()
        step = self.longest - 1
        windows = [
            tokens[begin : begin + self.longest] for begin in range(0, len(tokens) - 1, step)
        ]
        if len(windows) > 1:  # the last one is as long as the others, with more context
            windows[-1] = tokens[-self.longest :]
        sizes = [step] * (len(windows) - 1) + [len(tokens) - 1 - step * (len(windows) - 1)]
        return PendingScore(
            tuple(
                _Window(self._scores(window), size)
                for window, size in zip(windows, sizes, strict=True)
            )
        )

    def _scores(self, tokens: Sequence[int]) -> CompletionStream:
        # An engine samples at least one token; which one does not matter here.
        request = Request(prompt=tuple(tokens), max_tokens=1, sampling=GREEDY, prompt_logprobs=True)
        return self.engine.submit(request)

    def _write(self, question: Continuation) -> "PendingText":
        room = self.engine.max_length - question.max_tokens
        if room < 1:
            raise ConfigError(
                f"max_tokens is {question.max_tokens}, and the model reads "
                f"{self.engine.max_length} tokens with the prompt",
                where="max_tokens",
                hint="set a smaller max_tokens of the task",
            )
        tokens = self.tokenizer.encode_prompt(question.prompt).tolist() or self.first
        request = Request(
            prompt=tuple(tokens[-room:]),
            max_tokens=question.max_tokens,
            sampling=Sampling(temperature=question.temperature),
            seed=question.seed,
            stop=question.stop,
        )
        return PendingText(self.engine.submit(request), num_cut=max(0, len(tokens) - room))


@attrs.frozen
class _Window:
    """A piece of text that the engine reads, and how many of its last tokens are scored."""

    answer: CompletionStream
    num_scored: int


class PendingScore:
    """A score that is computed, of one piece of text or several.

    Args:
        windows: The pieces.
        num_cut: Tokens that were left out.
    """

    def __init__(self, windows: tuple[_Window, ...], *, num_cut: int = 0) -> None:
        self._windows, self._num_cut = windows, num_cut

    def reply(self, timeout_s: float) -> Scored:
        """Return the score.

        Raises:
            TimeoutError: It is not there in time; it is given up.
        """
        logprob, num_tokens, is_greedy = 0.0, 0, True
        for window in self._windows:
            found = _result(window.answer, timeout_s)
            if not window.num_scored:
                continue
            logprobs = (found.prompt_logprobs or ())[-window.num_scored :]
            likeliest = (found.prompt_top_logprobs or ())[-window.num_scored :]
            tokens = window.answer.request.prompt[-window.num_scored :]
            logprob += sum(one for one in logprobs if one is not None)
            num_tokens += window.num_scored
            best = [None if one is None else one[0][0] for one in likeliest]
            is_greedy = is_greedy and best == list(tokens)
        return Scored(
            logprob=logprob, num_tokens=num_tokens, is_greedy=is_greedy, num_cut=self._num_cut
        )


class PendingText:
    """Text that is written.

    Args:
        answer: The engine's.
        num_cut: Tokens of the prompt that were left out.
    """

    def __init__(self, answer: CompletionStream, *, num_cut: int) -> None:
        self._answer, self._num_cut = answer, num_cut

    def reply(self, timeout_s: float) -> Written:
        """Return the text.

        Raises:
            TimeoutError: It is not finished in time; it is given up.
        """
        found = _result(self._answer, timeout_s)
        return Written(
            text=found.text,
            num_tokens=len(found.tokens),
            finish_reason=found.finish_reason,
            num_cut=self._num_cut,
        )


def _result(answer: CompletionStream, timeout_s: float) -> Completion:
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        answer.cancel()
        raise


@contextmanager
def engine_model(opened: OpenedModel, *, max_num_seqs: int = 16) -> Iterator[EngineModel]:
    """Yield a model that answers questions, by the kernels that it trains with.

    Args:
        opened: What `open_model` returned.
        max_num_seqs: Answers that are sampled at once.
    """
    cfg = EngineConfig(max_num_seqs=max_num_seqs, max_length=opened.length, max_queue=1_000_000)
    engine, _ = engine_for(opened, cfg)
    # No replicas: nobody asked for a mesh with a data axis.
    assert isinstance(engine, Engine)
    with engine:
        yield EngineModel(engine)
