"""`PromptInputs`: conversations with pictures or sounds, as a model continues them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from axcore.config import evolve
from axcore.data import (
    PART_TYPES,
    ChatText,
    Feature,
    Tokenizer,
    read_data_url,
    reads_parts,
    with_soft_tokens,
)
from axcore.data.chat.conversation import FIELDS, read_conversation, template_values
from axcore.data.prompts import check_is_unicode
from axcore.errors import DataError
from axcore.inference import EncoderInput
from axcore.models import MultimodalLM
from axcore.runs import OpenedModel
from axcore.whole_files import read_regular


class PromptInputs:
    """Reads conversations whose contents have other parts than text, as OpenAI's chats have them.

    Args:
        feature: Decodes a file as it did in training.
        chat: Says what an input is in a text, and how many tokens it has.
        root: The folder below which are all files that a part may name.
    """

    def __init__(self, feature: Feature, chat: ChatText, root: Path) -> None:
        self._feature, self._chat, self._root = feature, chat, root.resolve()
        self._mark: str = chat.config.soft_token
        self._name = PART_TYPES[str(feature.part_type)]
        self._template = chat.tokenizer.known_chat_template
        self._takes_parts = reads_parts(self._template, self._mark, self._name)

    def read(
        self, fields: Mapping[str, Any]
    ) -> tuple[tuple[int, ...], tuple[EncoderInput, ...]] | None:
        """Return the tokens of a conversation up to where the model answers, and its inputs.

        Args:
            fields: Of a line.

        Returns:
            None where the line has no conversation.

        Raises:
            DataError: The conversation is not as it should be, or a file cannot be read.
        """
        name = next((one for one in FIELDS if fields.get(one) is not None), None)
        if name is None:
            return None
        chat = read_conversation(fields, field=name, soft_token=self._mark)
        for message in chat.messages:
            check_is_unicode(str(message.get("content")))
        inputs = tuple(self._inputs(fields[name]))
        text = self._template.render(
            [{**one, "content": self._content(one.get("content"))} for one in chat.messages],
            add_generation_prompt=True,
            tools=chat.tools,
            **template_values(fields, {}),
        )
        tokens = self._chat.tokenizer.encode_rendered(text)
        found = int((tokens == self._chat.mark).sum())
        if found != len(inputs):
            raise DataError(
                f"the conversation has {len(inputs)} parts that are not text, and its text has "
                f"{found} times {self._mark!r}, which is for one."
            )
        count = self._chat.config.num_soft_tokens
        placed, _ = with_soft_tokens(tokens, tokens, self._chat.mark, count)
        return tuple(placed.tolist()), inputs

    def _content(self, content: Any) -> Any:
        """Return a content as the template reads it: with marks in it, or a list of parts."""
        if not self._takes_parts or content is None:
            return content
        parts: list[dict[str, str]] = []
        for number, text in enumerate(content.split(self._mark)):
            parts += [{"type": self._name}] if number else []
            parts += [{"type": "text", "text": text}] if text else []
        return parts

    def _inputs(self, messages: Any) -> Iterator[EncoderInput]:
        (field,) = self._feature.fields
        for number, message in enumerate(messages):
            content = message.get("content")
            parts = content if isinstance(content, list) else []
            for part in parts:
                if part["type"] == "text":
                    continue
                where = f"Message {number + 1} has a part of type {part['type']!r}"
                try:
                    file = self._file(part)
                    (value,) = self._feature.make({field: file}, None).values()
                # A loop of links is a RuntimeError.
                except (ValueError, DataError, OSError, RuntimeError) as error:
                    what = error.what if isinstance(error, DataError) else str(error)
                    raise DataError(f"{where} that cannot be read: {what}") from error
                yield EncoderInput(value)

    def _file(self, part: Mapping[str, Any]) -> bytes:
        """Return the file of a part.

        Raises:
            ValueError: It names none that may be read.
        """
        kind = str(self._feature.part_type)
        if part["type"] != kind:
            raise ValueError(f"the model reads text and {kind} only")
        found = part.get(kind)
        key = "data" if kind == "input_audio" else "url"
        url = found.get(key) if isinstance(found, Mapping) else found
        if not isinstance(url, str) or not url:
            raise ValueError(f"it has no {kind}.{key}")
        if kind == "input_audio":
            url = f"data:audio/any;base64,{url}"
        if url.startswith("data:"):
            return read_data_url(url)
        if url.startswith(("http:", "https:")):
            raise ValueError(f"{url!r:.80} is not fetched; name a file below {self._root}")
        path = (self._root / url.removeprefix("file://")).resolve()
        # Behind links, too: whoever wrote the prompts may not be who reads the answers.
        if not path.is_relative_to(self._root):
            raise ValueError(f"{url!r:.80} is not below {self._root}; --set inputs_root=FOLDER")
        return read_regular(path)


def prompt_inputs(
    opened: OpenedModel, tokenizer: Tokenizer | None, root: Path
) -> PromptInputs | None:
    """Return the reader of a model's inputs, as its data has them; None where it reads text alone.

    Args:
        opened: The model.
        tokenizer: In the place of the model's own.
        root: As `PromptInputs` takes it.
    """
    features = getattr(opened.trainer.data, "features", {})
    chat = next((one for one in features.values() if isinstance(one, ChatText)), None)
    if not isinstance(opened.model, MultimodalLM) or chat is None or chat.mark is None:
        return None
    feature = features[opened.model.config.input_name]
    if feature.part_type is None or opened.tokenizer.chat_template is None:
        return None
    if tokenizer is not None:
        chat = evolve(chat.config, tokenizer=tokenizer.config).build()
    return PromptInputs(feature, chat, root)
