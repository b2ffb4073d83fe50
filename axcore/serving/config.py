"""`ServerConfig`: how a model is served."""

from collections.abc import Mapping

from axcore.config import NonNegativeFloat, PositiveFloat, PositiveInt, config
from axcore.inference import EngineConfig
from axcore.inference.embedding import Pooling


@config
class Limits:
    """What a server accepts.

    Attributes:
        max_body_bytes: Of the body of a request; 413 beyond.
        max_form_bytes: Of the body of a form with files, such as sounds; 413 beyond.
        max_bodies_bytes: Of all bodies above 64 KiB that arrive or wait to be parsed; one client
            has half, and always that of one body. Others wait unread, until 429.
        max_prompt_tokens: Of one prompt; None leaves the model's length as the only limit.
        max_tokens: Of one answer; None leaves the model's length as the only limit.
        max_completions: Answers that one request asks for: its prompts times its `n` or `best_of`.
        max_requests: Requests that are answered or wait at a time; 429 beyond.
        max_grammar_bytes: Of the text of a grammar, or of a JSON schema.
        grammar_timeout_s: Seconds of processor time that its compilation may take.
        template_timeout_s: Seconds of processor time that a chat template may take.
        num_workers: Threads, and processes for long bodies, chat templates and grammars: what
            requests need before the engine answers them; one client uses all but one of them. By
            default half of the cores, 2 to 8.
        body_timeout_s: Seconds that a body may take to arrive; 408 after.
        retry_after_s: What 429 and 503 say in `Retry-After`.
        media_origins: Servers that pictures and sound are fetched from where a request names their
            URL, as `https://example.com`; others are refused, and redirects are not followed.
    """

    max_body_bytes: PositiveInt = 4 << 20
    max_form_bytes: PositiveInt = 25 << 20
    max_bodies_bytes: PositiveInt = 32 << 20
    max_prompt_tokens: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_completions: PositiveInt = 64
    max_requests: PositiveInt = 256
    max_grammar_bytes: PositiveInt = 1 << 20
    grammar_timeout_s: PositiveFloat = 2.0
    template_timeout_s: PositiveFloat = 2.0
    num_workers: PositiveInt | None = None
    body_timeout_s: PositiveFloat = 30.0
    retry_after_s: PositiveInt = 1
    media_origins: tuple[str, ...] = ()


@config
class ServerConfig:
    """Describes a server; `axcore serve --set PATH=VALUE` changes it.

    Attributes:
        mesh: Sizes by mesh axis of the devices that the weights are split over, as `{"model": 2}`;
            -1 takes all. None takes as few as hold the weights in half of their memory.
        engine: How many answers are sampled at once, and in which pieces.
        limits: What requests may ask.
        pooling: Which vector `/v1/embeddings` makes of a text's final hidden states: that of its
            last token, or the mean over its tokens. Models that were trained for embeddings say
            which.
        drain_s: Seconds that requests have to finish when the server is asked to end.
        watch_s: Seconds between looks for newer checkpoints of a run.
        seed: What the samples of requests without a seed follow from, in the order in which they
            come; None samples differently each time the server starts.
    """

    mesh: Mapping[str, int] | None = None
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    pooling: Pooling = "last"
    drain_s: NonNegativeFloat = 60.0
    watch_s: PositiveFloat = 10.0
    seed: int | None = None
