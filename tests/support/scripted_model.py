"""A server of a model that answers what a test says."""

import contextlib

from chat_tokenizer import SPECIAL, write_chat_tokenizer
from model_server import SameSeed, chat_tokenizer, serving_model
from scripted_engine import ScriptedEngine

from axcore.serving import ParserNames, ServedModel

BY_TEMPLATE = ParserNames()


@contextlib.contextmanager
def scripted(
    engine, folder, template, text, *, parsers=BY_TEMPLATE, special=SPECIAL, added=(), **how
):
    """Yields a server whose model writes a text, by a chat template."""
    write_chat_tokenizer(folder, template, special=special, added=added)
    tokenizer = chat_tokenizer(folder)
    served = ServedModel(
        name="small",
        engine=ScriptedEngine(engine, tokenizer, text, **how),
        tokenizer=tokenizer,
        max_length=engine.max_length,
        seeds=SameSeed(),
        parsers=parsers,
    )
    with serving_model(served) as server:
        yield server
