"""`/v1/models`, `/tokenize` and `/detokenize`: a server's models, and their tokens."""

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from axcore.serving.api_error import invalid
from axcore.serving.chat_messages import read_messages
from axcore.serving.request_handler import any_served, compute
from axcore.serving.request_parser import RequestParser
from axcore.serving.request_settings import read_prompt, read_prompt_options
from axcore.serving.served import Served
from axcore.serving.served_model import ServedModel

_LETTERS_A_TOKEN = 4
"""Letters that a token counts as where work is measured by letters."""

_MAX_DETOKENIZED = 1 << 17
"""Tokens that `/detokenize` reads where the model's length is less. The library holds the GIL while
it decodes, so nothing else runs meanwhile."""


async def list_models(request: HttpRequest) -> Response:
    """List the model and its adapters."""
    served = any_served(request)
    described = [_described(served, name) for name in served.model_names]
    return JSONResponse({"object": "list", "data": described})


async def describe_model(request: HttpRequest) -> Response:
    """Describe one model."""
    served, name = any_served(request), request.path_params["name"]
    served.check_name(name)
    return JSONResponse(_described(served, name))


async def tokenize(request: HttpRequest) -> Response:
    """Return the tokens of a text, or of a conversation."""
    return await compute(request, _tokens)


async def detokenize(request: HttpRequest) -> Response:
    """Return the text of tokens."""
    return await compute(request, _text)


def _described(served: Served, name: str) -> dict[str, Any]:
    length = {"max_model_len": served.max_length} if isinstance(served, ServedModel) else {}
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "axcore",
        "root": served.name,
        **length,
        "step": served.step,
    }


async def _tokens(served: ServedModel, fields: RequestParser) -> dict[str, Any]:
    """Return the tokens of what a request to `/tokenize` holds."""
    if fields.raw("messages") is not None:
        messages = read_messages(fields)
        fields.finish()
        tokens = (await served.chat_prompt(messages, None)).tokens
    else:
        text, options = read_prompt(fields), read_prompt_options(fields)
        fields.finish()
        tokens = await served.tokenized(text, options)
    return {"tokens": tokens, "count": len(tokens), "max_model_len": served.max_length}


async def _text(served: ServedModel, fields: RequestParser) -> dict[str, Any]:
    """Return the text of what a request to `/detokenize` holds.

    Raises:
        ApiError: It is not a list of tokens of the vocabulary.
    """
    most = served.tokenizer.vocab_size
    tokens = fields.items("tokens", max_items=max(served.max_length, _MAX_DETOKENIZED))
    fields.finish()

    def decode() -> str:
        is_number = [type(token) is int and 0 <= token < most for token in tokens or ()]
        if tokens is None or not all(is_number):
            raise invalid(f"tokens is not a list of numbers from 0 to {most - 1}", "tokens")
        return served.decode(tokens)

    size = _LETTERS_A_TOKEN * len(tokens or ())
    return {"prompt": await served.work.compute(decode, size=size)}
