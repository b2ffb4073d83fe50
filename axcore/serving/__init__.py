"""Serving: a model behind HTTP, with the API that OpenAI's clients speak."""

from axcore.serving.access import NO_KEYS, ApiKeys, read_api_keys
from axcore.serving.adapters import AdapterFolder, named_folders, open_adapters
from axcore.serving.answers import ParserNames
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.app import serving_app
from axcore.serving.config import Limits, ServerConfig
from axcore.serving.embeddings_api import Embeddings
from axcore.serving.endpoint import Endpoint
from axcore.serving.http_server import HttpServer, listen
from axcore.serving.inputs import read_input
from axcore.serving.model_apis import ApiModel, find_model_api, start_model_api
from axcore.serving.request_parser import RequestParser
from axcore.serving.served import Served, ServedApi
from axcore.serving.served_model import ServedModel
from axcore.serving.startup import (
    read_generation_config,
    start_engine,
)
from axcore.serving.weights_watch import WeightsWatch

__all__ = [
    "NO_KEYS",
    "AdapterFolder",
    "ApiError",
    "ApiKeys",
    "ApiModel",
    "Embeddings",
    "Endpoint",
    "HttpServer",
    "Limits",
    "ParserNames",
    "RequestParser",
    "Served",
    "ServedApi",
    "ServedModel",
    "ServerConfig",
    "WeightsWatch",
    "find_model_api",
    "invalid",
    "listen",
    "named_folders",
    "open_adapters",
    "read_api_keys",
    "read_generation_config",
    "read_input",
    "serving_app",
    "start_engine",
    "start_model_api",
]
