"""One engine and one server for all tests that change nothing of them."""

import pytest
from chat_tokenizer import TEMPLATE, write_chat_tokenizer
from model_server import byte_tokenizer, chat_tokenizer, embeddings_of, serving, small_engine

TOOLS = (
    "{{ reasoning_effort }}{%- for tool in tools or () %}{{ tool.function | tojson }}{% endfor %}"
)


@pytest.fixture(scope="session")
def engine():
    """An engine of bytes, whose chat template is a plain one."""
    with small_engine(byte_tokenizer()) as made:
        yield made


@pytest.fixture(scope="session")
def server(engine):
    with serving(engine, endpoints=(embeddings_of(engine),)) as made:
        yield made


@pytest.fixture(scope="session")
def chat_engine(tmp_path_factory):
    folder = write_chat_tokenizer(tmp_path_factory.mktemp("chat"), TOOLS + TEMPLATE)
    with small_engine(chat_tokenizer(folder)) as made:
        yield made


@pytest.fixture(scope="session")
def chat_server(chat_engine):
    with serving(chat_engine) as made:
        yield made
