"""Chat templates of families, conversations for them, and tokens shown as text; for tests."""

import tomllib
from pathlib import Path

from chat_tokenizer import write_chat_tokenizer

from axcore.config import evolve
from axcore.data import tokenizer_in

FAMILIES = tomllib.loads((Path(__file__).parent / "chat_families.toml").read_text())
TALK = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "First."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Second."},
]
THOUGHTS = ({}, {"reasoning_content": "Hm."}, {}, {"reasoning_content": "So."})
CALL = {"name": "add", "arguments": {"a": 1}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
RECORDS = {
    "talk": {"messages": TALK},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, *TALK]},
    "think": {"messages": [{**one, **two} for one, two in zip(TALK, THOUGHTS, strict=True)]},
    "tools": {
        "messages": [
            TALK[0],
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "id": "call00001", "function": CALL}],
            },
            {"role": "tool", "content": "3", "tool_call_id": "call00001"},
            {"role": "assistant", "content": "Three."},
        ],
        "tools": TOOLS,
    },
}


def tokenizer_of(folder, template, *, special, ends):
    """Returns a tokenizer of bytes with special tokens, of which some end what a model writes."""
    cfg = tokenizer_in(write_chat_tokenizer(folder, template, special=special, eos=ends[0]))
    begins = "<s>" if "<s>" in special else None
    return evolve(cfg, bos_token=begins, end_tokens=tuple(ends[1:])).build()


def shown(sequence, special):
    """Returns tokens as text, with ⟦ and ⟧ around what counts."""
    text, is_inside = b"", False
    for token, counts in [*zip(sequence.tokens, sequence.counts, strict=True), (None, False)]:
        if counts != is_inside:
            text += ("⟦" if counts else "⟧").encode()
            is_inside = counts
        if token is not None:
            text += bytes([token]) if token < 256 else special[token - 256].encode()
    return text.decode()
