"""`reward_of`: the rewards that a run's model gives conversations."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from axcore.data import ChatPairs
from axcore.data.transforms.chat import answer_tokens
from axcore.errors import ConfigError, DataError
from axcore.layers import ScalarHead, whole_rows
from axcore.ops import use_policy
from axcore.runs.run import Run
from axcore.tasks import rewards

_SHORTEST = 32
"""Tokens of a row at least: rows are this long, or twice as long, and so on, in few programs."""

Conversation = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""Messages, or a record of them as in a file of conversations: `messages`, `tools`, `system`."""


def reward_of(
    run: Run, conversations: Sequence[Conversation], *, batch_size: int = 16
) -> NDArray[np.float32]:
    """Return the reward of the last answer of each conversation, as its run trained it to be.

    Args:
        run: Of the experiment `reward-model`.
        conversations: Each ends with the answer to score; the chat template of the run writes them.
        batch_size: Rows that are read at once.

    Raises:
        ConfigError: The run's model gives no rewards.
        DataError: A conversation is not one, or has more tokens than the run's rows.
    """
    if not isinstance(getattr(run.model, "head", None), ScalarHead):
        raise ConfigError(
            f"the run gives no rewards: the head of its model is not a {ScalarHead.__qualname__}",
            where=str(run.directory),
            hint="train one: axcore train reward-model --set init_from.path=RUN",
        )
    tokens = [
        _tokens(run, one, f"conversations[{place}]") for place, one in enumerate(conversations)
    ]
    found = np.zeros(len(tokens), np.float32)
    # In order of their lengths, so that rows have little padding.
    order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
    longest = _longest(run)
    with use_policy(run.trainer.compiler.kernel_policy):
        for begin in range(0, len(order), batch_size):
            places = order[begin : begin + batch_size]
            length = _row_length(len(tokens[places[-1]]), longest)
            rows = np.zeros((batch_size, length), np.int32)
            mask = np.zeros((batch_size, length), bool)
            for row, place in enumerate(places):
                rows[row, : len(tokens[place])] = tokens[place]
                mask[row, : len(tokens[place])] = True
            scores = _scores(run.model, run.state, rows, mask)
            found[places] = np.asarray(scores)[: len(places)]
    return found


def _tokens(run: Run, conversation: Conversation, where: str) -> NDArray[np.int64]:
    is_record = isinstance(conversation, Mapping)
    record: Any = conversation if is_record else {"messages": conversation}
    messages = record.get("messages") or record.get("conversations")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise DataError(
            f"expected a list of messages, got {conversation!r:.80}",
            where=where,
            hint='write [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": '
            '"4"}]',
        )
    data: Any = run.trainer.data  # one with a tokenizer, as `PreferenceData` has
    reads = getattr(data.config.source, "reads", None)
    cfg = reads if isinstance(reads, ChatPairs.Config) else ChatPairs.Config()
    try:
        found = answer_tokens(messages, len(messages) - 1, record, data.tokenizer, cfg).tokens
    except DataError as error:
        raise DataError(error.what, where=error.where or where, hint=error.hint) from error
    longest = _longest(run)
    if len(found) > longest:
        raise DataError(
            f"the conversation has {len(found)} tokens, and the run was trained on {longest} at "
            "most; without its end it would be another answer",
            where=where,
            hint=f"shorten it, or train with --set data.seq_len={len(found)}",
        )
    return found


def _longest(run: Run) -> int:
    data: Any = run.config.data
    return int(data.seq_len)


def _row_length(num_tokens: int, longest: int) -> int:
    length = _SHORTEST
    while length < num_tokens:
        length *= 2
    return min(length, longest)


@partial(jax.jit, static_argnums=0)
def _scores(model: Any, state: Any, tokens: Any, mask: Any) -> Any:
    return rewards(model, state, tokens, whole_rows(tokens, mask))
