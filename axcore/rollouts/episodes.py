"""`Episodes`: completions of one turn or several, between which an environment replies.

All episodes of a rollout take their turns together: every turn is sampled in one lot, then every
reply is computed in one, and so on. So which calls compute a token follows from the prompts and the
replies alone, and a run that resumes samples the same bits.

What the policy sampled stays the tokens that it sampled. A reply becomes tokens behind them, by the
bridge of the chat template where the prompt is a conversation.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import attrs

from axcore.data import Policy, Tokenizer
from axcore.data.chat.chat_tokens import naming_conversation
from axcore.data.chat.chat_turns import ChatTurns
from axcore.data.chat.conversation import EXTRAS, FIELDS, read_conversation, template_values
from axcore.data.chat.drivable import FOLLOW_UPS, check_drivable
from axcore.data.chat.parsers.formats import (
    HERMES,
    LLAMA,
    TOOL_FORMATS,
    AnswerReader,
    ToolFormat,
    merged,
    named_format,
    schemas_of,
    special_marks,
)
from axcore.data.chat.parsers.pieces import CallPart
from axcore.data.document import Document
from axcore.data.prompts import encode_prompt_record
from axcore.environments import Environment, EnvironmentPool, Reply, ToolCall, Turn, TurnRequest
from axcore.errors import DataError, EngineError
from axcore.inference import Completion, SampledToken, Sampling
from axcore.rewards import COMPLETION_TOKENS
from axcore.rewards.worker import NotAnswered
from axcore.rollouts.sampler import PolicySampler, SampleRequest

TURNS = "turns"
"""The field of rewards that has the texts of an episode's turns."""


_LONGEST_END_S = 10.0


@attrs.frozen
class Prompt:
    """What an episode begins with.

    Args:
        document: Its record.
        text: As rewards read it.
        tokens: Its tokens.
        chat: What continues it, where it is a conversation.
    """

    document: Document
    text: str
    tokens: tuple[int, ...]
    chat: ChatTurns | None = None


class Openings:
    """Makes prompts of records for an environment: conversations with its tools, or texts.

    Args:
        tokenizer: The run's.
        environment: What replies.
    """

    def __init__(self, tokenizer: Tokenizer, environment: Environment) -> None:
        self._tokenizer, self._environment = tokenizer, environment
        self._chats: dict[str, ChatTurns] = {}

    def prompt(self, document: Document) -> Prompt | None:
        """Return the prompt of a conversation; None for a text, which is read as it is.

        Raises:
            DataError: The chat template cannot be driven in tokens, or writes calls in a way that
                is not known.
        """
        fields = document.fields
        messages = self._environment.start(document.text, fields)
        said = [fields[one] for one in FIELDS if fields.get(one) is not None]
        if messages is None and not said:
            return None
        extras = {one: fields[one] for one in EXTRAS if fields.get(one) is not None}
        given = said[0] if messages is None else messages
        with naming_conversation(document):
            chat = read_conversation({**extras, "messages": given})
            tools = (*self._environment.tools, *(chat.tools or ()))
            values = template_values(fields, {})
        turns = self._chat(tools, values)
        record = {
            "messages": list(chat.messages),
            "tools": tools,
            "chat_template_kwargs": values,
        }
        with naming_conversation(document):
            found = encode_prompt_record(record, self._tokenizer)
        return Prompt(document, found.text, found.tokens, turns)

    def _chat(self, tools: Sequence[Any], values: Mapping[str, Any]) -> ChatTurns:
        """Return what continues conversations with some tools; once checked for all of them."""
        key = json.dumps([tools, values], sort_keys=True)
        if key not in self._chats:
            self._check(tools, values)
            self._chats[key] = ChatTurns(self._tokenizer, tools=tools, values=values)
        return self._chats[key]

    def _check(self, tools: Sequence[Any], values: Mapping[str, Any]) -> None:
        template, roles = self._tokenizer.known_chat_template, self._environment.roles
        if self._environment.tools and _call_format(self._tokenizer, tools) is None:
            raise DataError(
                "how the chat template makes a model write calls is not known, or its marks are "
                "special tokens, which have no text; known are those of "
                f"{', '.join(one.name for one in TOOL_FORMATS)}",
                where=template.where,
                hint="use a template of these: --set data.tokenizer.chat_template_path=FILE",
            )
        follow_ups = [one for one in FOLLOW_UPS if one in roles]
        check_drivable(self._tokenizer, follow_ups=follow_ups, has_tools=bool(tools), values=values)


def _call_format(tokenizer: Tokenizer, tools: Sequence[Any]) -> ToolFormat | None:
    """Return how turns write calls, as far as turns are text: special tokens are not."""
    template = tokenizer.known_chat_template.chosen(tools).source
    found = named_format(TOOL_FORMATS, None, template, where="")
    if found is None or not special_marks(tokenizer, found):
        return found
    # What is left without the marks is JSON alone.
    return LLAMA if found in (HERMES, LLAMA) else None


@attrs.define
class Episode:
    """A completion as it grows.

    Args:
        prompt: What it continues.
        number: Which prompt of the run that is.
        sample: Which of its completions.

    Attributes:
        tokens: Behind the prompt.
        log_probs: Theirs by the sampler; 0 for replies.
        replies: Where replies begin and end in `tokens`.
        turns: What the policy wrote.
        fields: What replies say to rewards.
        has_failed: Whether the environment failed.
    """

    prompt: Prompt
    number: int
    sample: int
    tokens: list[int] = attrs.field(factory=list)
    log_probs: list[float] = attrs.field(factory=list)
    replies: list[tuple[int, int]] = attrs.field(factory=list)
    turns: list[Turn] = attrs.field(factory=list)
    fields: dict[str, Any] = attrs.field(factory=dict)
    has_failed: bool = False

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled."""
        return len(self.tokens) - sum(end - begin for begin, end in self.replies)

    def add_turn(self, completion: Completion, calls: Sequence[ToolCall]) -> None:
        """Append what the policy wrote."""
        end = completion.end
        sampled = (*completion.tokens, *(() if end is None else (end,)))
        self.tokens += [token.id for token in sampled]
        self.log_probs += map(_log_prob, sampled)
        self.turns.append(Turn(completion.text, tuple(calls), is_ended=end is not None))

    def add_reply(self, tokens: Sequence[int]) -> None:
        """Append what the policy reads before its next turn."""
        self.replies.append((len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += tokens
        self.log_probs += [0.0] * len(tokens)


class Episodes:
    """Samples episodes.

    Args:
        sampler: Samples their turns.
        tokenizer: The run's.
        max_tokens: Tokens behind a prompt at most.
        environment: What replies; None for completions of one turn.
    """

    def __init__(
        self,
        sampler: PolicySampler,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        environment: EnvironmentPool | None = None,
    ) -> None:
        self._sampler, self._tokenizer = sampler, tokenizer
        self._max_tokens, self._environment = max_tokens, environment
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """End what runs in the background, after the turn that it is at."""
        self._is_stopped.set()
        self._sampler.running = None
        if self._thread is not None:
            self._thread.join(_LONGEST_END_S)

    def begin(
        self,
        policy: Policy,
        state: Any,
        prompts: Mapping[int, Prompt],
        *,
        num_samples: int,
        sampling: Sampling,
        stream: str,
        in_background: bool = False,
    ) -> Callable[[], list[Episode]]:
        """Begin to sample episodes of each prompt.

        Args:
            policy: The policy.
            state: Its weights.
            prompts: What episodes begin with, by their numbers in the run.
            num_samples: Episodes of each.
            sampling: How tokens are sampled.
            stream: See `PolicySampler.begin`.
            in_background: Whether later turns are sampled while the caller does something else.

        Returns:
            A function that waits for the episodes, and returns them in order.
        """

        def begun() -> list[Episode]:
            return [
                Episode(prompt, number, sample)
                for number, prompt in prompts.items()
                for sample in range(num_samples)
            ]

        options: dict[str, Any] = {"sampling": sampling, "stream": stream}
        is_stopped = self._is_stopped = threading.Event()
        first = self._sampler.begin(policy, state, [*map(self._request, begun())], **options)

        def finished() -> list[Episode]:
            # From the first turn on, also where an earlier call was interrupted.
            episodes = begun()
            self._finish(episodes, first, options, is_stopped)
            return episodes

        is_apart = in_background and self._environment is not None
        # Once: whoever begins the next ones waits for these, and whoever trains on them.
        found = self._in_thread(finished) if is_apart else lru_cache(finished)
        self._sampler.running = found
        return found

    def _in_thread(self, compute: Callable[[], list[Episode]]) -> Callable[[], list[Episode]]:
        """Compute in a thread; returns what waits for the result."""
        found: Future[list[Episode]] = Future()

        def run() -> None:
            try:
                found.set_result(compute())
            # Any error: whoever waits for the episodes would wait for ever.
            except BaseException as error:
                found.set_exception(error)

        # A daemon: nothing waits for episodes that nobody trains on when the interpreter ends.
        self._thread = threading.Thread(target=run, name="episodes", daemon=True)
        self._thread.start()
        return found.result

    def _finish(
        self,
        episodes: Sequence[Episode],
        first: Callable[[], list[Completion]],
        options: Mapping[str, Any],
        is_stopped: threading.Event,
    ) -> None:
        """Let all episodes take their turns."""
        active: Sequence[Episode] = episodes
        sampled = first
        if self._environment is not None:
            self._environment.begin(len(episodes))
        while active:
            for episode, completion in zip(active, sampled(), strict=True):
                episode.add_turn(completion, self._calls(episode, completion.text))
            if is_stopped.is_set():
                # Or the environment's processes would start again after the run.
                raise EngineError("the run ended before its episodes did")
            active = self._replied(active)
            if active:
                sampled = self._sampler.submit([*map(self._request, active)], **options)
        if self._environment is not None:
            self._environment.end()

    def _request(self, episode: Episode) -> SampleRequest:
        max_tokens = self._max_tokens - len(episode.tokens)
        if self._environment is not None:
            limit = self._environment.environment.config.max_turn_tokens
            max_tokens = min(max_tokens, limit or max_tokens)
        return SampleRequest(
            tokens=(*episode.prompt.tokens, *episode.tokens),
            number=episode.number,
            sample=episode.sample,
            turn=len(episode.turns),
            max_tokens=max_tokens,
        )

    def _replied(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Return the episodes that continue, with the replies behind them."""
        pool = self._environment
        if pool is None:
            return []
        requests = [
            TurnRequest(
                episode.prompt.text,
                tuple(episode.turns),
                {**episode.prompt.document.fields, **episode.fields},
            )
            for episode in episodes
        ]
        going = []
        for episode, request, reply in zip(episodes, requests, pool.replies(requests), strict=True):
            if reply is None:
                episode.has_failed = True
                continue
            try:
                tokens = self._take(episode, reply)
            except NotAnswered as error:
                episode.has_failed = True
                pool.add_failure(request, error)
                continue
            if tokens:
                episode.add_reply(tokens)
                going.append(episode)
        return going

    def _take(self, episode: Episode, reply: Reply) -> Sequence[int]:
        """Return the tokens of a reply; none where the episode is over."""
        reserved = {TURNS, COMPLETION_TOKENS, *episode.prompt.document.fields}
        if taken := reserved & reply.fields.keys():
            raise NotAnswered(f"its reply has the field {min(taken)!r}, which there is already")
        episode.fields |= reply.fields
        assert self._environment is not None, "it replied"
        cfg = self._environment.environment.config
        # A turn that was cut off has no end, behind which a bridge could begin.
        if reply.is_end or not episode.turns[-1].is_ended or len(episode.turns) >= cfg.max_turns:
            return ()
        tokens = self._tokens_of(episode.prompt.chat, reply)
        # One token of the next turn at least.
        return tokens if len(episode.tokens) + len(tokens) < self._max_tokens else ()

    def _tokens_of(self, chat: ChatTurns | None, reply: Reply) -> tuple[int, ...]:
        if chat is None and reply.messages:
            raise NotAnswered(
                "it replied with messages to a prompt that is a text; its `start` can make a "
                "conversation of the prompt"
            )
        if chat is None:
            return tuple(self._tokenizer.encode(reply.text).tolist())
        messages = reply.messages or ({"role": "user", "content": reply.text},)
        try:
            return chat.bridge(messages)
        except DataError as error:
            raise NotAnswered(f"the chat template does not take its reply: {error.what}") from None

    def _calls(self, episode: Episode, text: str) -> list[ToolCall]:
        """Return the calls in a turn, numbered within the episode."""
        if self._environment is None or episode.prompt.chat is None:
            return []
        tools = self._environment.environment.tools
        found = _call_format(self._tokenizer, tools)
        reader = AnswerReader(None, found, schemas=schemas_of(tools))
        pieces = merged([*reader.read(text), *reader.finish()])
        begin = sum(len(turn.calls) for turn in episode.turns)
        written = [one for one in pieces if isinstance(one, CallPart)]
        # Nine letters and digits, which some templates insist on.
        return [
            ToolCall(one.name or "", one.arguments, f"call{number:05}")
            for number, one in enumerate(written, begin)
        ]


def _log_prob(token: SampledToken) -> float:
    assert token.logprob is not None, "requests ask for them"
    return token.logprob
