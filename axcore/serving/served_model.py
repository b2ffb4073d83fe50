"""`ServedModel`: the engine, its tokenizer and its names, as requests use them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from axcore.config import field_names
from axcore.data import Tokenizer
from axcore.errors import AxcoreError
from axcore.inference import (
    AnyEngine,
    CompletionStream,
    Draining,
    EncoderInput,
    EngineError,
    QueueFull,
    Request,
    RequestError,
    Sampling,
)
from axcore.inference.placement import Placement
from axcore.layers import FIRST_SOFT_TOKEN
from axcore.serving.answers import ParserNames
from axcore.serving.api_error import ENGINE_FAILED, ApiError, from_error, invalid
from axcore.serving.inputs import InputReader, marked
from axcore.serving.logprobs import TokenTexts
from axcore.serving.request_parser import checked_text
from axcore.serving.request_settings import PromptOptions, Seeds
from axcore.serving.served import Served
from axcore.serving.tools import ToolChoice
from axcore.serving.worker_pool import RequestWork

if TYPE_CHECKING:
    from axcore.serving.adapters import AdapterFolder

_FIELDS = {
    "grammar": "response_format",
    "num_logprobs": "logprobs",
    "adapter": "model",
    "inputs": "messages",
    "stop_tokens": "stop_token_ids",
}
"""What requests call what an engine refuses."""

# Escapes and templates make a prompt longer than what was sent, hardly ever by more than this.
_BYTES_OF_A_BODY = 4
"""Bytes of prompts for each of the longest body, where nobody knows how long tokens are: templates
add to what was sent."""

_SHORT_TOKENIZE = 1 << 16
"""Bytes that `/tokenize` reads whatever the length of the model."""


class ChatPrompt(NamedTuple):
    """A conversation up to where the model answers.

    Args:
        tokens: Its tokens.
        inputs: Pictures and other parts.
        text: As its template wrote it.
    """

    tokens: tuple[int, ...]
    inputs: tuple[EncoderInput, ...]
    text: str


@attrs.define(kw_only=True)
class ServedModel(Served):
    """A model that writes text.

    Attributes:
        engine: What samples tokens.
        tokenizer: What it was trained with.
        max_length: Tokens of a prompt and its answer together at most.
        adapters: Names of what corrects the model for requests that name it.
        adapter_folder: Where requests may add adapters from; None lets them add none.
        placement: The devices of its weights; None where they stay on those that they come on.
        seeds: What decides the samples of each answer.
        texts: What tokens are as text.
        max_prompt_bytes: Bytes that the text of a prompt has at most.
        reader: Reads pictures and other parts of conversations; None where the model does not.
        parsers: Which formats of reasoning and of calls are read out of answers.
    """

    engine: AnyEngine
    tokenizer: Tokenizer
    max_length: int
    adapters: tuple[str, ...] = ()
    adapter_folder: "AdapterFolder | None" = None
    placement: Placement | None = None
    seeds: Seeds = attrs.field(factory=lambda: Seeds(None))
    reader: InputReader | None = None
    parsers: ParserNames = ParserNames()  # noqa: RUF009 - a frozen value
    texts: TokenTexts = attrs.field(init=False)
    max_prompt_bytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.texts = TokenTexts(self.tokenizer)
        of_token, most = (
            self.tokenizer.max_token_bytes(),
            _BYTES_OF_A_BODY * self.limits.max_body_bytes,
        )
        self.max_prompt_bytes = (
            # Only where a token has a bound of bytes does the text's length
            # bound its tokens from below: text with more bytes has too many
            # tokens for certain, and need not be tokenized to know it.
            most if of_token is None else min(most, of_token * self._most_tokens)
        )
        super().__attrs_post_init__()

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model's own, and those of its adapters."""
        return (self.name, *self.aliases, *self.adapters)

    @property
    def error(self) -> AxcoreError | None:
        """Why the engine stopped; None while no step has failed."""
        return self.engine.error

    def weights(self) -> Any:
        """Return the engine's weights, all of one version."""
        return self.engine.weights_in_use()

    def described(self) -> Mapping[str, Any]:
        """Return what the page shows: the engine's stats, and the model's."""
        return {
            "max_length": self.max_length,
            "has_chat": self.has_chat,
            "part_types": [] if self.reader is None else [self.reader.feature.part_type],
            **attrs.asdict(self.engine.stats()),
        }

    def _request_work(self) -> RequestWork:
        return RequestWork(self.tokenizer, self.limits, max_bytes=self.max_prompt_bytes)

    @property
    def _most_tokens(self) -> int:
        """Tokens of a prompt at most."""
        return min(self.max_length, self.limits.max_prompt_tokens or self.max_length)

    @property
    def has_chat(self) -> bool:
        """Whether its tokenizer has a chat template."""
        return self.chat_template is not None

    @property
    def chat_template(self) -> str | None:
        """The source of its chat template, if there is one."""
        found = self.tokenizer.chat_template
        return None if found is None else found.source

    def template_for(self, choice: ToolChoice) -> str | None:
        """Return the source of the chat template for a request, if there is one.

        Raises:
            ApiError: The request has tools which its answers may call, and the template does not
                write them.
        """
        template = self.tokenizer.chat_template
        if template is None:
            return None
        template = template.chosen(choice.tools)
        # A grammar forces a call by a model that has not read of it, too.
        if choice.tools and not choice.forced and not template.reads_tools:
            message = (
                f"{self.name} does not support tools: its chat template does not read them; leave "
                "them out, or force a call by tool_choice"
            )
            raise invalid(message, "tools", code="tools_not_supported")
        return template.source

    def adapter(self, name: str | None) -> str | None:
        """Return the adapter that a request names as its model; None for the model itself.

        Raises:
            ApiError: Neither is called so.
        """
        self.check_name(name)
        return None if name in (self.name, *self.aliases) else name

    def replace_weights(self, state: Any, step: int) -> None:
        """Take over the state of another step.

        Raises:
            AxcoreError: As `Engine.replace_weights`.
        """
        # First the weights, then the number: `/stats`
        # must not show a step that does not answer yet.
        self.engine.replace_weights(state)
        self.step = step

    async def prompt_tokens(
        self,
        prompt: str | Sequence[int],
        param: str,
        options: PromptOptions,
        *,
        max_size: int | None,
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt, those that begin a text before it.

        Args:
            prompt: A text, or its tokens.
            param: The field that contains it.
            options: How a text becomes tokens.
            max_size: Tokens that are kept, the last ones; None keeps all.

        Raises:
            ApiError: It has none, too many, or one that is not in the vocabulary.
        """
        tokens = (
            await self.encoded(prompt, param, options) if isinstance(prompt, str) else tuple(prompt)
        )
        return self.checked(_last(tokens, max_size), param)

    def max_prompt_size(self, truncates_to: int | None, max_tokens: int | None) -> int | None:
        """Return how many tokens of a prompt are kept; None where it is not to be cut."""
        if truncates_to != -1:
            return truncates_to
        return max(1, min(self._most_tokens, self.max_length - (max_tokens or 1)))

    async def encoded(
        self, text: str, param: str, options: PromptOptions, *, max_bytes: int | None = None
    ) -> tuple[int, ...]:
        """Return the tokens of a text; one that has too many bytes is not even tokenized.

        Args:
            text: The text.
            param: The field that contains it.
            options: How it becomes tokens.
            max_bytes: Its bytes at most; by default those of a prompt.

        Raises:
            ApiError: It has more.
        """
        # Before tokenizing, whose time grows with the text: a long prompt is refused at once.
        self._check_bytes(text, param, self.max_prompt_bytes if max_bytes is None else max_bytes)
        encode = partial(options.tokens, self.tokenizer, text)
        found = await self.work.compute(encode, size=len(text))
        return tuple(found.tolist())

    async def tokenized(self, text: str, options: PromptOptions) -> tuple[int, ...]:
        """Return the tokens of a text that is not a prompt.

        Raises:
            ApiError: It is far longer than a prompt may be.
        """
        max_bytes = max(self.max_prompt_bytes, _SHORT_TOKENIZE)
        return await self.encoded(text, "prompt", options, max_bytes=max_bytes)

    async def chat_prompt(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[Any] | None,
        *,
        max_size: int | None = None,
        **values: Any,
    ) -> ChatPrompt:
        """Return a conversation up to where the model answers.

        Args:
            messages: Whose contents are text, or have other parts among it.
            tools: As templates read them.
            max_size: Tokens that are kept, the last ones; None keeps all.
            **values: What else the template reads.

        Raises:
            ApiError: The model does not read one of the parts, or one cannot be decoded; there is
                no chat template, or it refuses the conversation.
        """
        texts, parts = marked(messages, self.reader)
        text, tokens = await self._rendered(texts, tools, **values)
        if max_size is not None and parts:
            message = "truncate_prompt_tokens would cut a conversation with other parts than text"
            raise invalid(message, "truncate_prompt_tokens")
        tokens = _last(tokens, max_size)
        if self.reader is None:
            return ChatPrompt(self.checked(tuple(tokens.tolist()), "messages"), (), text)
        # Before soft tokens are placed and parts are read: what is too long is refused at once.
        self._check_length(len(tokens) + len(parts) * (self.reader.num_soft_tokens - 1), "messages")
        found = self.checked(self.reader.placed(tokens, len(parts)), "messages", is_chat=True)
        read = self.reader.read
        inputs = [await self.work.threads.run(partial(read, part, self.limits)) for part in parts]
        return ChatPrompt(found, tuple(inputs), text)

    async def _rendered(
        self, messages: Sequence[dict[str, Any]], tools: list[Any] | None, **values: Any
    ) -> tuple[str, Any]:
        """Return a conversation as its template writes it, and its tokens, unchecked.

        Raises:
            ApiError: There is no chat template, or it refuses the conversation.
        """
        if not self.has_chat:
            message = (
                f"{self.name} has no chat template; start the server with --chat-template FILE, or "
                "use /v1/completions."
            )
            raise invalid(message, "messages", code="no_chat_template")
        given = {"add_generation_prompt": True, "tools": tools, **values}
        try:
            text = await self.work.render(messages, given)
        except AxcoreError as error:
            raise from_error(error, "messages") from error
        # Without special tokens of its own: the template has written them.
        encode = partial(self.tokenizer.encode_rendered, text)
        return text, await self.work.compute(encode, size=len(text))

    # The limit of tokens is checked again afterwards; this one is only there to bound the work.
    def _check_bytes(self, text: str, param: str, most: int) -> None:
        """Refuse a text of which its bytes say that it has too many tokens."""
        size = len(text.encode())
        if size <= most:
            return
        raise invalid(
            f"This model's maximum context length is {self.max_length} tokens. However, {param} "
            f"has {size:,} bytes, and the longest text that can be short enough has {most:,}. "
            f"Reduce the length of {param}.",
            param,
            code="context_length_exceeded",
        )

    def checked(
        self, tokens: tuple[int, ...], param: str, *, is_chat: bool = False
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt, if they are of the vocabulary and not too many.

        Args:
            tokens: Of the prompt.
            param: The field that contains it.
            is_chat: Whether soft tokens may be among them, which only the server itself writes.
        """
        if not tokens:
            message = f"{param} has no token; expected a text of at least one"
            raise invalid(message, param)
        self._check_length(len(tokens), param)
        # A token out of range would read another row's embedding,
        # or clamp to the last one: an answer without an error.
        size = self.tokenizer.vocab_size
        unknown = [
            one for one in tokens if one >= size and not (is_chat and one >= FIRST_SOFT_TOKEN)
        ]
        if unknown:
            raise invalid(f"{param} has token {max(unknown)}; the vocabulary has {size}", param)
        return tokens

    def _check_length(self, num_tokens: int, param: str) -> None:
        """Raise ApiError where a prompt has too many tokens."""
        # Equal is too long as well: one place is for the answer's first token.
        if num_tokens >= self.max_length:
            raise self._too_long(num_tokens, 1, param)
        most = self._most_tokens
        if num_tokens > most:
            message = f"{param} has {num_tokens} tokens; at most {most} are accepted"
            raise invalid(message, param, code="context_length_exceeded")

    def max_new_tokens(
        self, prompt: Sequence[int], max_tokens: int | None, *, default: int | None = None
    ) -> int:
        """Return the tokens that an answer may have.

        Args:
            prompt: What is continued.
            max_tokens: What a request asks for.
            default: What it asks for where `max_tokens` is None, if there is room for as many;
                without one it asks for all that there is room for.

        Raises:
            ApiError: The text would be too long.
        """
        room = self.max_length - len(prompt)
        most = min(room, self.limits.max_tokens or room)
        if max_tokens is None:
            return most if default is None else min(most, default)
        if max_tokens > room:
            raise self._too_long(len(prompt), max_tokens, "max_tokens")
        if max_tokens > most:
            raise invalid(f"max_tokens is {max_tokens}; at most {most} are accepted", "max_tokens")
        return max_tokens

    def _too_long(self, num_prompt: int, max_tokens: int, param: str) -> ApiError:
        """Return the error of a prompt and its answer, in the words that clients look for."""
        return invalid(
            f"This model's maximum context length is {self.max_length} tokens. However, you "
            f"requested {num_prompt + max_tokens} tokens ({num_prompt} in the prompt, {max_tokens} "
            "in the completion). Reduce the length of the prompt or of the completion.",
            param,
            code="context_length_exceeded",
        )

    async def submit(self, requests: Sequence[Request]) -> list[CompletionStream]:
        """Return the answers to requests, all of them or none.

        Args:
            requests: What is asked.

        Raises:
            ApiError: A request cannot be answered, or not now.
        """
        work = partial(self._submit, requests)
        # Several answers to one prompt differ in their seeds alone.
        grammar = requests[0].grammar  # all requests have the same
        if grammar is None:
            size = sum(len(request.prompt) for request in requests)
            return await self.work.compute(work, size=size, when_late=_cancel)
        try:
            await self.work.check_grammar(grammar)
        except AxcoreError as error:
            raise self._refused(error) from error
        # The engine's compilation runs in this process and cannot be
        # stopped; it is safe only because the worker's has just ended well.
        # The engine compiles it again, which takes as long, so it waits in the grammars' queue.
        return await self.work.grammars.pool.run(work, when_late=_cancel)

    def _submit(self, requests: Sequence[Request]) -> list[CompletionStream]:
        completions: list[CompletionStream] = []
        try:
            for request in requests:
                completions.append(self.engine.submit(request))
        except (RequestError, EngineError) as error:
            # All or none: a client that gets an error would never
            # read the others, which would run to their end.
            _cancel(completions)
            raise self._refused(error) from error
        return completions

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, as UTF-8 can write it."""
        return checked_text(self.tokenizer.decode(tokens), "tokens")

    def _refused(self, error: AxcoreError) -> ApiError:
        wait = self.limits.retry_after_s
        if isinstance(error, RequestError):
            return from_error(error, _param(error))
        if isinstance(error, QueueFull):
            return ApiError(429, f"{error.what}.", code="queue_full", retry_after_s=wait)
        if isinstance(error, Draining):
            return draining(wait)
        # The text of the device's error stays in the log; it may show paths and addresses.
        return ApiError(500, ENGINE_FAILED, code="engine_error")


def _last(tokens: Any, max_size: int | None) -> Any:
    return tokens if max_size is None else tokens[-max_size:]


def _cancel(completions: Sequence[CompletionStream]) -> None:
    for completion in completions:
        completion.cancel()


def draining(retry_after_s: int) -> ApiError:
    """Return the error of requests that come while the server ends."""
    message = "The server is about to end, and takes no new requests."
    return ApiError(503, message, code="draining", retry_after_s=retry_after_s)


def _param(error: RequestError) -> str | None:
    """Return the field of a request that an engine refuses."""
    if error.where == "sampling":  # its errors begin with the setting
        name = error.what.partition(" ")[0]
        return name if name in field_names(Sampling) else None
    return _FIELDS.get(error.where or "", error.where)
