"""Grammars: what the text of an answer has to match, token by token.

The library llguidance, of the extra `guided`, computes which tokens can follow. Letters of shapes:
W words of 32 tokens.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import attrs
import numpy as np
from jaxtyping import UInt32

from axcore.config.json_files import parse_json
from axcore.data import HuggingFaceTokenizer, Tokenizer
from axcore.errors import RequestError
from axcore.extras import import_extra
from axcore.inference.sampler import WORD
from axcore.inference.token_bytes import TokenBytes

_SPACES_BETWEEN = {"whitespace_pattern": " ?"}
"""White space between the parts of JSON: with any number, a greedy model may write no end of it."""

_MAX_PROPERTIES = 4000
"""Properties of all objects of a schema, which take about 2 s to compile."""

MAX_OPTIONAL = 400
"""Properties of one object that may be left out."""

KEPT_GRAMMARS = 64
"""Number of grammars that stay compiled, those used last."""


@attrs.frozen
class Grammar:
    """A language that an answer has to be of; see `json_schema`, `regex` and `lark`.

    Args:
        kind: What it is written in.
        text: It.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str


def json_schema(schema: Mapping[str, Any] | str) -> Grammar:
    """Return the grammar of JSON texts that match a JSON schema; `{}` matches all.

    Between its parts a text has one space or none, unless the schema says otherwise by
    `"x-guidance": {"whitespace_pattern": PATTERN}` or `{"whitespace_flexible": BOOLEAN}`.
    """
    # As text, so that a grammar is a value that can be compared and kept.
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Grammar("json_schema", text)


def check_schema_size(schema: Any) -> None:
    """Check that a schema has no more properties than can be followed.

    The library's time grows with the square of their number, and it gives up at the first name
    where more than about 500 may follow.

    Raises:
        RequestError: It has more.
    """
    # A list of its own instead of recursion: a schema may be nested deeper than Python's stack.
    pending: list[Any] = [[schema]]
    num_properties = 0
    while pending:
        value = pending.pop()
        inner = value.values() if isinstance(value, dict) else value
        pending += [one for one in inner if isinstance(one, dict | list)]
        found = value.get("properties") if isinstance(value, dict) else None
        if not isinstance(found, dict):
            continue
        num_properties += len(found)
        required = value.get("required")
        num_optional = len(
            found.keys() - set(map(str, required if isinstance(required, list) else ()))
        )
        for number, most, what in (
            (num_properties, _MAX_PROPERTIES, "properties"),
            (num_optional, MAX_OPTIONAL, "properties in one object that are not required"),
        ):
            if number > most:
                raise RequestError(
                    f"the JSON schema has {number} {what}; at most {most} can be followed",
                    where="grammar",
                    hint="list properties under required, or ask for several answers",
                )


def regex(pattern: str) -> Grammar:
    """Return the grammar of texts that a pattern matches as a whole, in the syntax of Rust."""
    return Grammar("regex", pattern)


def lark(text: str) -> Grammar:
    """Return a context-free grammar in the syntax of Lark, whose first rule is `start`."""
    return Grammar("lark", text)


class GrammarMatcher:
    """Where an answer is in its grammar. Not for several threads at once.

    Args:
        matcher: The library's.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def is_finished(self) -> bool:
        """Whether the text matches and nothing can follow but its end."""
        return bool(self._matcher.is_stopped())

    @property
    def is_match(self) -> bool:
        """Whether the text matches as it is."""
        return bool(self._matcher.is_accepting())

    def fill(self, mask: UInt32[np.ndarray, " W"]) -> None:
        """Write which tokens can follow; those that end texts are among them where it matches.

        Raises:
            RequestError: The grammar needs too much work here.
        """
        words = np.frombuffer(self._matcher.compute_bitmask(), "<u4")
        if self._matcher.is_error():
            # The library writes no more words than its vocabulary has; the model's may be padded.
            raise self._error("needs too much work")
        mask[: len(words)] = words
        mask[len(words) :] = 0

    def accept(self, tokens: Sequence[int]) -> None:
        """Continue by tokens that were sampled.

        Raises:
            RequestError: They cannot follow.
        """
        if not self._matcher.consume_tokens(list(tokens)):
            raise self._error(f"cannot continue with the tokens {list(tokens)}")

    def count_valid(self, tokens: Sequence[int]) -> int:
        """Return how many of some tokens can follow, one after the other; stays where it is."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def roll_back(self, num_tokens: int) -> None:
        """Go back by the last tokens."""
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise self._error(f"cannot go back by {num_tokens} tokens")

    def _error(self, what: str) -> RequestError:
        return RequestError(
            f"the grammar {what}: {plain_words(self._matcher.get_error())}", where="grammar"
        )


class DelayedEnd:
    """Forbids what ends a text until it has some tokens; not for several threads at once.

    Args:
        inner: Where the text is in its grammar, if it has one.
        end_ids: Tokens that end it.
        min_tokens: Tokens that it has at least.
    """

    def __init__(
        self, inner: GrammarMatcher | None, end_ids: Sequence[int], min_tokens: int
    ) -> None:
        self._inner, self._num_left = inner, min_tokens
        self._ends = np.array(sorted({*end_ids}), np.int64)

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow but the end, by the grammar."""
        return self._inner is not None and self._inner.is_finished

    def fill(self, mask: UInt32[np.ndarray, " W"]) -> None:
        """Write which tokens can follow.

        Raises:
            RequestError: The grammar needs too much work here.
        """
        mask[:] = np.iinfo(np.uint32).max
        if self._inner is not None:
            self._inner.fill(mask)
        if self._num_left <= 0:
            return
        allowed = mask.copy()
        bits = (np.uint32(1) << (self._ends % WORD).astype(np.uint32)).astype(np.uint32)
        np.bitwise_and.at(allowed, self._ends // WORD, ~bits)
        # Where a grammar lets nothing but the end follow, the text ends.
        if allowed.any():
            mask[:] = allowed

    def accept(self, tokens: Sequence[int]) -> None:
        """Continue by tokens that were sampled.

        Raises:
            RequestError: They cannot follow.
        """
        self._num_left -= len(tokens)
        if self._inner is not None:
            self._inner.accept(tokens)


class GrammarCompiler:
    """Makes matchers of grammars; for several threads.

    Args:
        tokenizer: Of the model's tokens; nothing is made of it before the first grammar.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._known: Any = None
        self._found: OrderedDict[Grammar, Future[Any]] = OrderedDict()

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """Return a matcher at the beginning of an answer.

        Several threads compile several grammars at once, and each one once.

        Raises:
            RequestError: The grammar is wrong, or the tokenizer's tokens are not known as bytes.
        """
        # A future under the lock, so that a second thread that asks for the
        # same grammar waits for the first instead of compiling it again.
        with self._lock:
            found = self._found.get(grammar)
            is_new = found is None
            found = found or Future()
            self._found[grammar] = found
            self._found.move_to_end(grammar)
            if len(self._found) > KEPT_GRAMMARS:
                self._found.popitem(last=False)
        if is_new:
            self._compile_into(found, grammar)
        compiled = found.result()
        # A copy, as a matcher moves on with its answer.
        with self._lock:
            return GrammarMatcher(compiled.deep_copy())

    def _compile_into(self, found: "Future[Any]", grammar: Grammar) -> None:
        """Compile a grammar for all who wait for it; one that is wrong is forgotten."""
        try:
            found.set_result(self._compile(grammar))
        # BaseException: whoever waits for the future must be woken, whatever it was.
        except BaseException as error:
            with self._lock:
                if self._found.get(grammar) is found:
                    del self._found[grammar]
            # Forgotten first, so that the next request tries again.
            found.set_exception(error)

    def _compile(self, grammar: Grammar) -> Any:
        library = _import_llguidance()
        # A lock of its own: listing a vocabulary takes
        # seconds, and finding a grammar must not wait for it.
        with self._reading:
            if self._known is None:
                self._known = _grammar_tokenizer(self._tokenizer)
        source = grammar_source(grammar, self._tokenizer)
        matcher = library.LLMatcher(self._known, source, log_level=0)
        if matcher.is_error():
            raise wrong_grammar(grammar, matcher.get_error())
        return matcher


_LARK_PARTS = re.compile(
    r"""//[^\n]*|\#[^\n]*|"(?:\\[\s\S]|[^"\\])*(?:"|\\?\Z)|/(?:\\.|[^/\\\n])+(?:/|\\?(?:$|\Z))"""
    r"""|(<[^\s<>\[\]"][^\s<>"]*>)""",
    re.MULTILINE,
)
"""Comments, strings and patterns of a Lark grammar, in which no token is named; or its name.

What is not closed reaches to the end: were it none, each quote within would be tried again.
"""

_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}
_HINTS = {
    "json_schema": "give a schema of JSON Schema 2020-12; {} matches any JSON",
    "regex": "write it in the syntax of Rust's regex: no lookaround, no back-references",
    "lark": "begin with a rule `start`, and define each name that is used",
}


def wrong_grammar(grammar: Grammar, said: str) -> RequestError:
    """Return the error of a grammar that the library does not take, with what it says about it."""
    return RequestError(
        f"the grammar is no {_NAMES[grammar.kind]} that can be followed: {plain_words(said)}",
        where="grammar",
        hint=_HINTS[grammar.kind],
    )


def plain_words(said: str) -> str:
    """Return what the library says about an error, without its own state and with short lines."""
    # A check of its own that fails is a panic, which says nothing that a user could act on.
    if said.startswith("panic"):
        return "it is too large"
    lines = said.partition("<state>")[0].strip().split("\n")
    return "\n".join(
        line if len(line) <= 160 else f"{line[:157]}..." for line in lines[:_SAID_LINES]
    )


_SAID_LINES = 8
"""Lines of what the library says about an error; it can show the full grammar."""


def mask_words(vocab_size: int) -> int:
    """Return the number of words of a mask of so many tokens."""
    return -(-vocab_size // WORD)


def grammar_source(grammar: Grammar, tokenizer: Tokenizer) -> str:
    """Return a grammar as the library reads it, which compiles nothing yet.

    Raises:
        RequestError: A schema is not valid JSON or has too many properties, or no library.
    """
    library = _import_llguidance()
    if grammar.kind == "lark":
        return str(
            library.LLMatcher.grammar_from_lark(_with_token_numbers(grammar.text, tokenizer))
        )
    if grammar.kind == "regex":
        return str(library.LLMatcher.grammar_from_regex(grammar.text))
    try:
        schema = parse_json(grammar.text)
    except ValueError as error:
        raise RequestError(
            f"the JSON schema is not valid JSON: {error}",
            where="grammar",
            hint=_HINTS["json_schema"],
        ) from error
    check_schema_size(schema)
    if isinstance(schema, dict):
        style = schema.get("x-guidance", {})
        is_said = not isinstance(style, dict) or "whitespace_pattern" in style
        if not is_said and "whitespace_flexible" not in style:
            schema = {**schema, "x-guidance": {**_SPACES_BETWEEN, **style}}
    return str(library.LLMatcher.grammar_from_json_schema(schema))


def _with_token_numbers(text: str, tokenizer: Tokenizer) -> str:
    """Return a Lark grammar in which each token that is named, as `<think>`, is its number.

    The library knows names of special tokens only; those of added tokens that are text, it
    knows as text.
    """

    def numbered(part: re.Match[str]) -> str:
        number = tokenizer.added_token(part[1]) if part[1] else None
        return part[0] if number is None else f"<[{number}]>"

    return _LARK_PARTS.sub(numbered, text)


def _import_llguidance() -> Any:
    """Return the library.

    Raises:
        RequestError: It is not installed.
    """
    return import_extra("llguidance", used_by="a grammar", error=RequestError, where="grammar")


def _grammar_tokenizer(tokenizer: Tokenizer) -> Any:
    """Return the library's tokenizer with the same tokens.

    Raises:
        RequestError: What bytes its tokens are is not known.
    """
    library = _import_llguidance()
    wrapped = TokenBytes(
        known_token_bytes(tokenizer),
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.bos_id,
        encode=lambda text: tokenizer.encode(text).tolist(),
    )
    return library.LLTokenizer(wrapped, eos_token=list(tokenizer.end_ids))


def known_token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token, none of special ones.

    Raises:
        RequestError: They are not known.
    """
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    if not any(tokens):
        is_file = isinstance(tokenizer, HuggingFaceTokenizer)
        why = "its tokenizer.json does not say it" if is_file else None
        raise _unknown(why or f"it is a {type(tokenizer).__name__}")
    return [token or b"" for token in tokens]


def _unknown(why: str) -> RequestError:
    return RequestError(
        f"grammars need to know which bytes each token is: {why}",
        where="tokenizer",
        hint="serve a model with a byte-level or SentencePiece tokenizer",
    )
