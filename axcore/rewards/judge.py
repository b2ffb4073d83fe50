"""`Judge`: a reward that another model gives, asked over HTTP."""

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from axcore.config import REQUIRED, NonNegativeInt, PositiveFloat, PositiveInt, config
from axcore.config.json_files import parse_json
from axcore.errors import ConfigError, DataError
from axcore.rewards.reward import WorkerReward

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_LONGEST_WAIT_S = 20.0


class Judge(WorkerReward):
    """The score that a model gives a completion, by OpenAI's chat completions API.

    `axcore serve`, vLLM and most services offer it. Of equal questions the judge should give equal
    answers, or a run that resumes learns from other rewards: leave `temperature` at 0.
    """

    @config
    class Config(WorkerReward.Config):
        r"""Describes a `Judge`.

        Args:
            base_url: Of the server, up to `/v1`.
            model: The model that judges.
            template: What it is asked, with `{prompt}`, `{completion}` and `{name}` of fields.
            score_pattern: A regular expression, the first group of which is the score. Its last
                match in the reply counts.
            max_score: What the score is divided by.
            api_key_variable: The environment variable with the key; none is sent where it is unset.
            max_tokens: Tokens of the reply at most.
            temperature: 0 takes the likeliest token.
            retries: How often a request is sent again that the server was too busy for.
            request_timeout_s: Seconds to wait for a reply.
        """

        base_url: str = REQUIRED
        model: str = REQUIRED
        template: str = (
            "Rate the answer to a question, from 0 (useless) to 10 (perfect).\n\n"
            "Question:\n{prompt}\n\nAnswer:\n{completion}\n\n"
            "Reply with a line `Score: N`, and nothing else."
        )
        score_pattern: str = r"[Ss]core:\s*(-?\d+(?:\.\d+)?)"
        max_score: PositiveFloat = 10.0
        api_key_variable: str = "OPENAI_API_KEY"
        max_tokens: PositiveInt = 256
        temperature: float = 0.0
        retries: NonNegativeInt = 3
        request_timeout_s: PositiveFloat = 60.0
        time_limit_s: PositiveFloat = 180.0
        num_workers: PositiveInt | None = 8

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        try:
            self._pattern = re.compile(cfg.score_pattern)
        except re.error as error:
            raise _wrong_pattern(cfg.score_pattern, str(error)) from None
        if not self._pattern.groups:
            raise _wrong_pattern(cfg.score_pattern, "it has no group")
        if not cfg.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url is {cfg.base_url!r}; expected http:// or https://",
                where="data.rewards",
                hint="base_url=http://localhost:8000/v1",
            )

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Ask for the score.

        Raises:
            DataError: The template names a field that the prompt lacks, or the server did not
                answer with a score.
        """
        cfg = self.config
        question = self._filled({**fields, "prompt": prompt, "completion": completion})
        reply = self._reply(
            {
                "model": cfg.model,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": cfg.max_tokens,
                "temperature": cfg.temperature,
            }
        )
        # The last one: models repeat the question before they answer.
        found = [match[1] for match in self._pattern.finditer(reply)]
        if not found:
            raise DataError(
                f"the judge's reply has no score: {reply!r:.200}",
                where=cfg.base_url,
                hint="ask for it in template, and match it by score_pattern",
            )
        return float(found[-1]) / cfg.max_score

    def _filled(self, values: Mapping[str, Any]) -> str:
        """Return the question; all at once, so that braces in a completion stay as they are."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in values:
                raise DataError(
                    f"a prompt has no field {match[1]!r}; it has {', '.join(values)}",
                    where="template",
                )
            return str(values[match[1]])

        return _PLACEHOLDER.sub(value, self.config.template)

    def _reply(self, body: Mapping[str, Any]) -> str:
        """Return the text of the reply, trying again where the server may yet answer."""
        cfg = self.config
        for attempt in range(cfg.retries + 1):
            problem, may_pass, wait_s = "", True, min(2.0**attempt, _LONGEST_WAIT_S)
            try:
                return _content(self._post(body))
            except urllib.error.HTTPError as error:
                said = error.read(2000).decode("utf-8", "replace")
                problem, may_pass = f"{error.code} {said:.200}", error.code in (408, 409, 429)
                may_pass |= error.code >= 500
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            if not may_pass or attempt == cfg.retries:
                break
            time.sleep(wait_s)
        raise DataError(
            f"the judge did not answer: {problem}",
            where=f"{cfg.base_url}/chat/completions",
            hint="check base_url and model, or raise retries",
        )

    def _post(self, body: Mapping[str, Any]) -> bytes:
        cfg = self.config
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(cfg.api_key_variable):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{cfg.base_url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=cfg.request_timeout_s) as response:
            read: bytes = response.read()
        return read


def _content(body: bytes) -> str:
    try:
        content = parse_json(body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        content = None
    if not isinstance(content, str):
        raise DataError(f"the judge's reply is not a chat completion: {body[:200]!r}")
    return content


def _wrong_pattern(pattern: str, reason: str) -> ConfigError:
    return ConfigError(
        f"score_pattern is {pattern!r:.80}: {reason}",
        where="data.rewards",
        hint=r"score_pattern=Score:\s*(\d+)",
    )
