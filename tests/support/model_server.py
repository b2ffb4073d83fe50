"""A model behind HTTP in this process: random weights, a thread of its own, a port that is free."""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import openai

from axcore.data import ByteTokenizer, Tokenizer, tokenizer_in
from axcore.inference import Engine, EngineConfig
from axcore.inference.embedding import Pooling, TextEmbedder
from axcore.models import transformer
from axcore.serving import (
    NO_KEYS,
    ApiKeys,
    Embeddings,
    HttpServer,
    Limits,
    Served,
    ServedModel,
    listen,
    serving_app,
)
from axcore.serving.request_settings import Seeds, Settings
from axcore.serving.startup import text_embeddings

LENGTH = 128
SMALL = EngineConfig(
    max_num_seqs=4,
    max_length=LENGTH,
    page_size=16,
    max_num_batched_tokens=20,
    batch_size_buckets=(4,),
    num_decode_steps=1,
)
"""Few shapes, so that little is compiled."""


class SameSeed(Seeds):
    """Seeds of which nothing depends on chance, or on the order of requests.

    An answer of a random model can end at any token; here it ends where it did the last time.
    """

    def __init__(self) -> None:
        super().__init__(0)

    def of(self, settings: Settings, number: int | None = None) -> list[int]:
        """Returns the seeds of answers, as if a request that sends no seed had sent 0."""
        seed = 0 if settings.seed is None else settings.seed
        return super().of(attrs.evolve(settings, seed=seed), number)


class Reply(NamedTuple):
    """A response: its status, its headers, and its body as text."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class ModelServer:
    """A server that answers at `url`."""

    def __init__(self, served: Any, url: str, http: HttpServer) -> None:
        self.served, self.url, self.http = served, url, http
        self._clients = contextlib.ExitStack()

    def client(self, key: str = "none") -> openai.OpenAI:
        """Returns OpenAI's client of the server; its connections are closed with the server."""
        made = openai.OpenAI(base_url=f"{self.url}v1", api_key=key, max_retries=0)
        return self._clients.enter_context(made)

    def close(self) -> None:
        """Closes the connections of clients, and ends the server."""
        self._clients.close()
        self.http.should_exit = True

    def send(self, path: str, body: Any = None, **headers: str) -> Reply:
        """Sends a request: GET without a body, otherwise POST; bytes as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"content-type": "application/json", **named}
        request = urllib.request.Request(self.url + path, data, sent)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return Reply(found.status, dict(found.headers), found.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read().decode())

    def complete(self, prompt: Any, **fields: Any) -> Any:
        """Returns the first choice of a completion that is not drawn at random."""
        body = {"prompt": prompt, "temperature": 0, **fields}
        reply = self.send("v1/completions", body)
        assert reply.status == 200, reply.text
        return reply.json["choices"][0]


def small_model(tokenizer: Tokenizer) -> tuple[Any, Any]:
    """Returns a model with random weights, the same ones each time, and its state."""
    model: Any = transformer(
        vocab_size=tokenizer.vocab_size, dim=16, num_layers=1, num_heads=2, hidden_dim=16
    ).build()
    return model, model.init(0)


def small_engine(tokenizer: Tokenizer, cfg: EngineConfig = SMALL) -> Engine:
    """Returns an engine of that model, its programs compiled."""
    engine = Engine(*small_model(tokenizer), tokenizer, cfg)
    engine.warm_up()
    return engine


def embeddings_of(engine: Engine, *, pooling: Pooling = "last") -> Embeddings:
    """Returns the endpoint of an engine of that model which makes vectors of texts."""
    model, _ = small_model(engine.tokenizer)
    embedder = TextEmbedder(model, engine.config, max_length=engine.max_length, pooling=pooling)
    return text_embeddings(embedder, engine.tokenizer)


def ending_engine(tokenizer: Tokenizer) -> Engine:
    """Returns an engine of a model that ends each text: its likeliest token is the end token."""
    model, state = small_model(tokenizer)
    embedding, head = state["decoder"]["embedding"], state["head"]
    embedding["weight"] = embedding["weight"].at[:, 0].set(4.0)
    head["weight"] = head["weight"].at[tokenizer.eos_id].set(0.0).at[tokenizer.eos_id, 0].set(2.0)
    engine = Engine(model, state, tokenizer, SMALL)
    engine.warm_up()
    return engine


def byte_tokenizer() -> Tokenizer:
    return ByteTokenizer.Config().build()


def chat_tokenizer(folder: Path) -> Tokenizer:
    """Returns the tokenizer of a folder that `write_chat_tokenizer` wrote."""
    return tokenizer_in(folder).build()


@contextlib.contextmanager
def serving(
    engine: Engine,
    *,
    keys: ApiKeys = NO_KEYS,
    hosts=(),
    drain_s=10.0,
    proxies=None,
    endpoints=(),
    **limits: Any,
):
    """Yields a server of an engine, which stays open."""
    served = ServedModel(
        name="small",
        engine=engine,
        endpoints=endpoints,
        tokenizer=engine.tokenizer,
        max_length=engine.max_length,
        limits=Limits(**limits),
        step=3,
        seeds=SameSeed(),
    )
    given = {"keys": keys, "hosts": hosts, "drain_s": drain_s, "proxies": proxies}
    with serving_model(served, **given) as server:
        yield server


@contextlib.contextmanager
def serving_model(served: Served, *, keys: ApiKeys = NO_KEYS, hosts=(), drain_s=10.0, proxies=None):
    """Yields a server of a model, whose engine stays open."""
    listener = listen("127.0.0.1", 0)
    app = serving_app(served, keys=keys, hosts=hosts)
    http = HttpServer(app, served, drain_s=drain_s, proxies=proxies)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server = ModelServer(served, url, http)
    try:
        yield server
    finally:
        server.close()
        thread.join(30)
        assert not thread.is_alive()
