"""Any Hugging Face `tokenizer.json`, through the `tokenizers` library.

The files next to it name its special tokens and bring its chat template.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.config.json_files import check_is_fetched, parse_json, read_json
from axcore.data.chat.chat_template import BUNDLED_TEMPLATES, ChatTemplate
from axcore.data.tokenizers.gguf_vocabulary import byte_signs
from axcore.data.tokenizers.tokenizer import PlacedTokens, Tokenizer, round_up_vocab
from axcore.errors import DataError

TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
"""Where a model's folder has the chat template of conversations with tools."""

_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""How a token is called that is one byte."""


@attrs.frozen
class _TokenizerSettings:
    """What a `tokenizer_config.json` says.

    Args:
        tokens: Special tokens by role, as `eos_token` and `pad_token`.
        added: Tokens by number that the vocabulary has in addition to those of the
            `tokenizer.json`, each with its settings.
        chat_template: The template, if there is one.
        tool_template: That of conversations with tools, if it is another one.
    """

    tokens: Mapping[str, str] = {}
    added: Mapping[int, Mapping[str, Any]] = {}
    chat_template: str | None = None
    tool_template: str | None = None


def read_settings(path: str | None, special_tokens: str | None = None) -> _TokenizerSettings:
    """Return the settings of a file, none without one.

    Args:
        path: A `tokenizer_config.json`.
        special_tokens: A `special_tokens_map.json`, for tokens that the other one does not name.

    Raises:
        DataError: A file does not exist, or is none of these.
    """
    content: dict[str, Any] = {}
    further: dict[str, Any] = {}
    if path is not None:
        content = read_json(path, "tokenizer_config.json", error=DataError)
    if special_tokens is not None:
        further = read_json(special_tokens, "special_tokens_map.json", error=DataError)
    added = content.get("added_tokens_decoder", {})
    return _TokenizerSettings(
        tokens={**_tokens(further), **_tokens(content)},
        added={int(number): token for number, token in added.items()},
        **_templates(content.get("chat_template"), str(path)),
    )


def _tokens(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that a file names, by role."""
    return {
        role: _text(token)
        for role, token in content.items()
        if role.endswith("_token") and isinstance(token, str | dict)
    }


def _text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _templates(found: Any, path: str) -> dict[str, str]:
    """Return the template, or of several those that transformers chooses from by itself."""
    if found is None:
        return {}
    if not isinstance(found, list):
        return {"chat_template": str(found)}
    by_name = {str(one["name"]): str(one["template"]) for one in found}
    if "default" not in by_name:
        raise DataError(
            f"None of the chat templates is the default: there are {', '.join(by_name)}.",
            where=path,
            hint="Write the one that you want into a file, and set chat_template_path.",
        )
    tools = {"tool_template": by_name["tool_use"]} if "tool_use" in by_name else {}
    return {"chat_template": by_name["default"], **tools}


class HuggingFaceTokenizer(Tokenizer):
    """The vocabulary and the rules of a `tokenizer.json`.

    Truncation and padding that the file asks for are switched off: packing loses no token and pads
    by itself. Special tokens are never read out of a document: one that writes `</s>` holds those
    four characters, not its own end. They are read out of what a chat template writes, also where
    a message wrote them.
    """

    @config
    class Config(Tokenizer.Config):
        """Which files, and which of their tokens frame a document.

        Attributes:
            path: The `tokenizer.json`, relative to the working directory.
            eos_token: The token that ends a document, as it is written in the file; that of
                `settings_path` where None.
            bos_token: The token that begins a document; where None, that of `settings_path`, if the
                `tokenizer.json` begins texts with it. Without one, a document's first token is
                never predicted.
            pad_token: What fills rows up; without one, here or there, `eos_token` does.
            end_tokens: Tokens that end what a model writes, in addition to `eos_token`.
            settings_path: A `tokenizer_config.json`, which names tokens and may hold a template.
            special_tokens_path: A `special_tokens_map.json`, for tokens that `settings_path` does
                not name.
            chat_template_path: A chat template, before those of `settings_path`.
            tool_template_path: The chat template of conversations with tools, where it is another.
            template_texts: What conversations have in the place of texts that a chat template
                writes, by these texts: around a picture, what a processor of transformers does.
            vocab_multiple: `vocab_size` is a multiple of this.
        """

        path: str = REQUIRED
        eos_token: str | None = None
        bos_token: str | None = None
        pad_token: str | None = None
        end_tokens: tuple[str, ...] = ()
        settings_path: str | None = None
        special_tokens_path: str | None = None
        chat_template_path: str | None = None
        tool_template_path: str | None = None
        template_texts: Mapping[str, str] = {}
        vocab_multiple: PositiveInt = 1

    file_fields = (
        "path",
        "settings_path",
        "special_tokens_path",
        "chat_template_path",
        "tool_template_path",
    )

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._settings = read_settings(cfg.settings_path, cfg.special_tokens_path)
        self._tokenizer = _load(cfg.path, self._settings)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        eos_id = self._named("eos_token")
        if eos_id is None:
            raise DataError(
                "The tokenizer needs the name of the token that ends a document.",
                where=cfg.path,
                hint=f"Set eos_token; {self._special_tokens()}.",
            )
        self.eos_id, self.bos_id = eos_id, self._bos_id()
        pad_id = self._named("pad_token")
        self.pad_id = eos_id if pad_id is None else pad_id
        self._further_ids = [self._id_of(token, "end_tokens") for token in cfg.end_tokens]
        self.vocab_size = round_up_vocab(max(vocabulary.values()) + 1, cfg.vocab_multiple)

    @property
    def end_ids(self) -> tuple[int, ...]:  # noqa: D102 - an attribute
        return tuple(dict.fromkeys((self.eos_id, *self._further_ids)))

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template of its conversations, if it has one."""
        found, for_tools, cfg = self.chat_template_source, self.tool_template_source, self.config
        where = cfg.chat_template_path or cfg.settings_path or cfg.path
        tool_use, make = None, partial(ChatTemplate, replaced=cfg.template_texts)
        if for_tools is not None:
            read_from = cfg.tool_template_path or where
            tool_use = make(for_tools, self._roles(), where=read_from)
        if found is None:
            return tool_use
        return make(found, self._roles(), where=where, tool_use=tool_use)

    @cached_property
    def chat_template_source(self) -> str | None:
        """The text of that template."""
        path = self.config.chat_template_path
        return self._settings.chat_template if path is None else _read(path)

    @cached_property
    def tool_template_source(self) -> str | None:
        """The text of the template of conversations with tools, where it is another one.

        A template that the config names is that of all conversations, as in transformers.
        """
        cfg = self.config
        if cfg.tool_template_path is not None:
            return _read(cfg.tool_template_path)
        return self._settings.tool_template if cfg.chat_template_path is None else None

    @property
    def content(self) -> dict[str, Any]:
        """What a `tokenizer.json` says about it, with the tokens that its settings add."""
        found: dict[str, Any] = parse_json(self._tokenizer.to_str())
        return found

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the tokens of each text, without those that the file would put around it."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encoded]

    def encode_placed(self, text: str) -> PlacedTokens:
        """Return the tokens of a text in which special tokens are written out, placed."""
        # As a batch: the library lets no other thread run while it encodes a text alone.
        encoding = self._marked.encode_batch([text], add_special_tokens=False)[0]
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return PlacedTokens(np.array(encoding.ids, np.int32), places[:, 0], places[:, 1])

    def encode_written(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text in which special tokens may be written out."""
        encoding = self._marked.encode_batch_fast([text], add_special_tokens=False)[0]
        return np.array(encoding.ids, np.int32)

    def encode_rendered(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text that the chat template wrote."""
        return self.encode_written(text)

    def max_token_bytes(self) -> int | None:
        """Return the bytes of the text of one token at most.

        None where the file's decoder does not make text of bytes: one token may be an
        unknown word of any length. White space that a special token takes with it is not counted.
        """
        longest = super().max_token_bytes()
        if longest is None:
            return None
        written = max((len(one.content.encode()) for one in self._added.values()), default=0)
        # Unicode composes at most three code points into one that is no longer than any of them.
        return max(longest, written) * (1 if self._tokenizer.normalizer is None else 3)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text, as the file's decoder writes it."""
        numbers = [int(token) for token in tokens]
        text: str = self._tokenizer.decode(numbers, skip_special_tokens=True)
        return text

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token, where the file's decoder makes text of bytes."""
        name: str | None = self._tokenizer.id_to_token(token)
        added = self._added.get(token)
        if name is None or (added is not None and added.special):
            return None
        return name.encode() if added is not None else self._bytes_of(name)

    def token_name(self, token: int) -> str | None:
        """Return how the file writes a token."""
        name: str | None = self._tokenizer.id_to_token(token)
        return name

    def special_tokens(self) -> tuple[int, ...]:
        """Return the added tokens that have no text."""
        return tuple(number for number, one in self._added.items() if one.special)

    def added_token(self, name: str) -> int | None:
        """Return the number of an added token, special or not."""
        number: int | None = self._tokenizer.token_to_id(name)
        return number if number in self._added else None

    @cached_property
    def _added(self) -> dict[int, Any]:
        return dict(self._tokenizer.get_added_tokens_decoder())

    @cached_property
    def _bytes_of(self) -> Callable[[str], bytes | None]:
        """What makes bytes of the name of a token, by the decoder of the file."""
        decoder = self._tokenizer.decoder
        content = {} if decoder is None else parse_json(decoder.__getstate__())
        steps = content.get("decoders", [content])
        kinds = [step.get("type") for step in steps]
        if "ByteLevel" in kinds:
            byte_of = {sign: byte for byte, sign in enumerate(byte_signs())}
            return lambda name: (
                bytes(byte_of[sign] for sign in name) if set(name) <= byte_of.keys() else None
            )
        if "ByteFallback" not in kinds:
            return lambda name: None
        spaces = [
            step["pattern"]["String"]
            for step in steps
            if step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]
        ]
        space = spaces[0] if spaces else " "
        return lambda name: (
            bytes.fromhex(name[3:5]) if _BYTE.fullmatch(name) else name.replace(space, " ").encode()
        )

    @cached_property
    def _marked(self) -> Any:
        """The same tokenizer, which reads special tokens out of a text."""
        return _load(self.config.path, self._settings, reads_special=True)

    def _roles(self) -> dict[str, str]:
        """Return the tokens that a template may name."""
        own = {role: getattr(self.config, role) for role in ("eos_token", "bos_token", "pad_token")}
        return {**self._settings.tokens, **{role: name for role, name in own.items() if name}}

    def _bos_id(self) -> int | None:
        """Return what begins a document: of the settings' tokens only what the file adds."""
        named = self._named("bos_token")
        begins = self._tokenizer.encode("").ids[:1] == [named]
        return named if begins or self.config.bos_token is not None else None

    def _named(self, field: str) -> int | None:
        name = self._roles().get(field)
        return None if name is None else self._id_of(name, field)

    def _id_of(self, token: str, field: str) -> int:
        number: int | None = self._tokenizer.token_to_id(token)
        if number is None:
            raise DataError(
                f"{field} is {token!r}, which is not in the tokenizer's vocabulary.",
                where=self.config.path,
                hint=f"Set {field} to a token of the file; {self._special_tokens()}.",
            )
        return number

    def _special_tokens(self) -> str:
        added = self._tokenizer.get_added_tokens_decoder().values()
        special = [repr(token.content) for token in added if token.special]
        if not special:
            return "it has no special tokens"
        return "its special tokens are " + ", ".join(special[:20])


def with_chat_template(tokenizer: Tokenizer, template: str, *, where: str) -> Tokenizer:
    """Return a tokenizer that writes conversations by another chat template.

    Args:
        tokenizer: The tokenizer.
        template: A file, or the name of a template that comes with axcore, as `qwq`.
        where: Of errors.

    Raises:
        DataError: There is no such template, or the tokenizer takes none.
    """
    bundled = {path.stem: path for path in BUNDLED_TEMPLATES.glob("*.jinja")}
    path = bundled.get(template, Path(template).expanduser())
    if not path.is_file():
        raise DataError(
            f"There is no chat template {template!r}.",
            where=where,
            hint=f"Name a file of Jinja, or one of axcore's: {', '.join(sorted(bundled))}.",
        )
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise DataError(
            f"A {type(tokenizer).__name__} takes no other chat template.",
            where=where,
            hint="Leave it out; templates are for a HuggingFaceTokenizer.",
        )
    made = evolve(tokenizer.config, chat_template_path=str(path)).build()
    _ = made.known_chat_template  # one that is not Jinja is an error now, not at the first request
    return made


def tokenizer_in(folder: str | Path) -> HuggingFaceTokenizer.Config:
    """Return the config of the tokenizer in a model's folder, with what ends the model's answers.

    Raises:
        DataError: There is no `tokenizer.json`, or the files next to it cannot be read.
    """
    root = Path(folder)
    cfg = HuggingFaceTokenizer.Config(
        path=str(root / "tokenizer.json"),
        settings_path=_there(root / "tokenizer_config.json"),
        chat_template_path=_there(root / "chat_template.jinja"),
        tool_template_path=_there(root / TOOL_TEMPLATE),
    )
    settings = read_settings(cfg.settings_path)
    if "eos_token" not in settings.tokens:
        cfg = evolve(cfg, special_tokens_path=_there(root / "special_tokens_map.json"))
        settings = read_settings(cfg.settings_path, cfg.special_tokens_path)
    tokenizer = _load(cfg.path, settings)
    ends = tuple(_name_of(number, tokenizer, str(root)) for number in published_end_ids(root))
    if "eos_token" in settings.tokens or not ends:
        return evolve(cfg, end_tokens=ends)
    return evolve(cfg, eos_token=ends[0], end_tokens=ends[1:])


def published_end_ids(folder: Path) -> tuple[int, ...]:
    """Return the tokens that the model in a folder ends its answers with, as far as it says."""
    for name in ("generation_config.json", "config.json"):
        path = _there(folder / name)
        found = read_json(path, name, error=DataError).get("eos_token_id") if path else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    return ()


def _name_of(number: int, tokenizer: Any, said_in: str) -> str:
    name: str | None = tokenizer.id_to_token(number)
    if name is None:
        raise DataError(
            f"Texts end with token {number}, which is not in the tokenizer's vocabulary.",
            where=said_in,
            hint="Take the tokenizer and the files next to it from one model.",
        )
    return name


def _there(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _load(path: str, settings: _TokenizerSettings, *, reads_special: bool = False) -> Any:
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(
            f"The tokenizer file {path!r} does not exist; looked for {file.absolute()}.",
            hint="Set the tokenizer's path to a Hugging Face tokenizer.json.",
        )
    check_is_fetched(file, error=DataError)
    import tokenizers  # here, because byte-level runs have no use for it

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"The tokenizer file {path!r} cannot be read as a tokenizer.json: {error}.",
            where=str(file.absolute()),
            hint="Save it again from the library that made it.",
        ) from error
    # transformers saves the truncation and padding that were set last; documents are read in full.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, settings, path)
    tokenizer.encode_special_tokens = not reads_special
    return tokenizer


def _add_tokens(tokenizer: Any, settings: _TokenizerSettings, path: str) -> None:
    """Add tokens that the settings name and the file lacks, under the numbers that they name."""
    import tokenizers

    for number, token in sorted(settings.added.items()):
        if tokenizer.token_to_id(token["content"]) is None:
            tokenizer.add_tokens([tokenizers.AddedToken(**token)])
        found = tokenizer.token_to_id(token["content"])
        if found != number:
            raise DataError(
                f"{token['content']!r} is token {found} of {path}, and {number} by its settings.",
                where=path,
                hint="Take the tokenizer.json and the tokenizer_config.json from one model.",
            )


def _read(path: str) -> str:
    file = Path(path).expanduser()
    try:
        check_is_fetched(file, error=DataError)
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"The chat template {path!r} cannot be read: {error.strerror}.",
            where=str(file.absolute()),
        ) from error
