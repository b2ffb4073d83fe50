"""`PreferenceData`: batches of labelled conversations, in pairs or one by one.

Letters: B rows, S sequences of a row, T tokens of a sequence.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import attrs
import numpy as np

from axcore.config import REQUIRED, Fraction, PositiveInt, config, evolve
from axcore.data.chat.chat_tokens import ChatTokens
from axcore.data.data_loader import DataLoader, TrainBatches, ValidationBatches
from axcore.data.document import is_validation
from axcore.data.packing.batches import DataShard, batches, train_order
from axcore.data.packing.packing import PADDING_ROW, Batch
from axcore.data.sources.file_source import FileSource
from axcore.data.sources.json_lines import ChatFiles
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from axcore.data.transforms.chat import LABEL, SEQUENCES, ChatPairs, LabelledChats
from axcore.errors import DataError
from axcore.module import ArraySpec, BatchSpec

_NUM_SEQUENCES = 2
"""Of a row: the answer that was chosen and the one rejected, or an answer and one that is not its
prompt's."""


_SEQUENCE_ARRAYS = {
    "tokens": "int32",
    "targets": "int32",
    "token_mask": "bool",
    "loss_weights": "float32",
}
_OF_TARGETS = ("targets", "loss_weights")


@attrs.frozen(eq=False)
class _LabelledExample:
    """A conversation with its label, or the chosen and the rejected one of a pair.

    Attributes:
        sequences: The conversation, or the two.
        is_good: The label; None for a pair.
    """

    sequences: tuple[ChatTokens, ...]
    is_good: bool | None


class PreferenceData(DataLoader):
    """Batches for objectives that learn from preferences; all conversations are held in memory.

    A batch has `tokens` and `targets` [B, S, T] int32, `token_mask` [B, S, T] bool, False for
    padding, `loss_weights` [B, S, T] float32, which are 1 where a target counts, and `row_weights`
    [B] float32, 0 for rows of padding. Of pairs the first sequence is the answer chosen, the second
    the one rejected. Conversations with a label each have `is_good` [B] float32; the second
    sequence is the prompt with the answer of the next conversation of the source, which belongs to
    another prompt.
    """

    @config
    class Config(DataLoader.Config):
        """What to read and how to batch it.

        Attributes:
            source: Conversations, read by `ChatPairs` or `LabelledChats`.
            tokenizer: How text becomes tokens; it has a chat template.
            seq_len: T. What is longer loses its end, and is left out where no answer is left.
            has_targets: Whether a batch has `targets` and `loss_weights`. Without them, as for a
                reward model, the last token of a sequence is among its `tokens` too.
            batch_size: B of the global batch, over all processes.
            seed: Decides the order of training rows.
            shuffle: Whether rows are read in another order each epoch.
            validation_fraction: Share of the rows that is never trained on, in [0, 1).
            validation_batches: How many batches an evaluation reads at most; None reads them all.
        """

        source: FileSource.Config = ChatFiles.Config(reads=ChatPairs.Config())
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        seq_len: PositiveInt = REQUIRED
        has_targets: bool = True
        seed: int = 0
        shuffle: bool = True
        validation_fraction: Fraction = 0.05
        validation_batches: PositiveInt | None = None

        def for_shapes(self) -> Self:
            """Return a config that reads no file of the user's."""
            source: Any = self.source
            # A path that always exists, as a source checks what it is given when it is built.
            stand_in = evolve(ChatFiles.Config(path="."), reads=_reads(source))
            return evolve(self, source=stand_in, tokenizer=ByteTokenizer.Config())

    tokenizer: Tokenizer
    source: FileSource

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.source = cfg.source.build()
        self.tokenizer = cfg.tokenizer.build()
        self.has_labels = isinstance(_reads(cfg.source), LabelledChats.Config)

    @property
    def longest(self) -> int:
        """Tokens of a sequence at most: one more than a row, where there is a last target."""
        return int(self.config.seq_len + self.config.has_targets)

    @property
    def sequence_arrays(self) -> dict[str, str]:
        """The arrays of a batch that have a number for each token, and their dtypes."""
        left_out = () if self.config.has_targets else _OF_TARGETS
        return {name: one for name, one in _SEQUENCE_ARRAYS.items() if name not in left_out}

    def batch_spec(self) -> BatchSpec:
        """Return the arrays of a batch."""
        cfg = self.config
        rows, length = cfg.batch_size, cfg.seq_len
        values = {"tokens": self.tokenizer.vocab_size, "targets": self.tokenizer.vocab_size}
        sequences = {
            name: ArraySpec(
                shape=(rows, _NUM_SEQUENCES, length),
                axes=("batch", None, "time"),
                dtype=dtype,
                num_values=values.get(name),
            )
            for name, dtype in self.sequence_arrays.items()
        }
        of_rows = ("row_weights", "is_good") if self.has_labels else ("row_weights",)
        of_each_row = {
            name: ArraySpec(shape=(rows,), axes=("batch",), dtype="float32") for name in of_rows
        }
        return BatchSpec(
            arrays={**sequences, **of_each_row},
            unit="token",
            num_units=rows * _NUM_SEQUENCES * length,
            sized_by={"batch": "batch_size", "time": "seq_len"},
        )

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Return an iterator without end over one process's part of each global batch.

        Raises:
            DataError: The source cannot be read, or contains nothing to train on.
            ConfigError: `process_count` does not divide `batch_size`.
        """
        cfg = self.config
        shard, rows = DataShard(cfg.batch_size, process_index, process_count), self._rows[0]
        order = train_order(len(rows), seed=cfg.seed, shuffle=cfg.shuffle)
        names = ("seq_len", "batch_size", "seed", "shuffle")
        settings = {name: getattr(cfg, name) for name in names}
        return TrainBatches(batches(rows, order, shard), {"tokens": rows.digest, **settings})

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Return the validation batches, the last one filled up with rows of padding.

        Raises:
            DataError: As `train` does.
        """
        cfg = self.config
        shard, rows = DataShard(cfg.batch_size, process_index, process_count), self._rows[1]
        return ValidationBatches.of(rows, shard, max_batches=cfg.validation_batches)

    def summary(self) -> "PreferenceSummary":
        """Read the source, and says how much there is.

        Raises:
            DataError: As `train` does.
        """
        train, validation = self._rows
        return PreferenceSummary(self.source.describe(), len(train), len(validation))

    @cached_property
    def _rows(self) -> tuple["LabelledRows", "LabelledRows"]:
        """What is trained on, and what is held out."""
        cfg = self.config
        splits: tuple[list[_LabelledExample], list[_LabelledExample]] = [], []
        num_cut = num_left_out = 0
        for document in self.source.transformed(self.tokenizer):
            if SEQUENCES not in document.fields:
                raise DataError(
                    f"{document.name} is not a labelled conversation.",
                    where="data.source",
                    hint="Set source.reads to ChatPairs.Config() or LabelledChats.Config().",
                )
            found = document.fields[SEQUENCES]
            cut = tuple(_cut(one, self.longest) for one in found)
            # The first token is not a target, so it does not count.
            if not all(one.counts[1:].any() for one in cut):
                num_left_out += 1
                continue
            num_cut += any(len(a.tokens) < len(b.tokens) for a, b in zip(cut, found, strict=True))
            is_held = is_validation(document.name, cfg.validation_fraction)
            splits[is_held].append(_LabelledExample(cut, document.fields.get(LABEL)))
        if num_cut or num_left_out:
            print(
                f"data: of {self.source.describe()}, {num_cut:,} rows lost the end of an answer, "
                f"and {num_left_out:,} of which no answer fits data.seq_len are left out",
                file=sys.stderr,
            )
        train, validation = (LabelledRows(tuple(one), self) for one in splits)
        if not len(train) or (cfg.validation_fraction and not len(validation)):
            raise DataError(
                f"{self.source.describe()} has {len(train)} rows to train on, and "
                f"{len(validation)} held out; validation_fraction is {cfg.validation_fraction}.",
                hint="Give more rows, or change data.validation_fraction; 0 holds none out.",
            )
        return train, validation


@attrs.frozen
class PreferenceSummary:
    """What there is to train on.

    Attributes:
        source: Where it comes from.
        train_rows: Pairs, or labelled conversations to train on.
        validation_rows: Those that are never trained on.
    """

    source: str
    train_rows: int
    validation_rows: int

    def __str__(self) -> str:
        return f"{self.source}: {self.train_rows:,} rows; validation: {self.validation_rows:,} rows"


@attrs.frozen(eq=False, slots=False)
class LabelledRows:
    """Labelled conversations as rows of arrays."""

    examples: tuple[_LabelledExample, ...]
    data: PreferenceData

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the rows of those numbers; PADDING_ROW is one that weighs nothing."""
        cfg: Any = self.data.config
        shape, pad = (len(rows), _NUM_SEQUENCES, cfg.seq_len), self.data.tokenizer.pad_id
        fill = {"tokens": pad, "targets": pad}
        made = {
            name: np.full(shape, fill.get(name, 0), dtype)
            for name, dtype in self.data.sequence_arrays.items()
        }
        made["row_weights"] = np.array([row != PADDING_ROW for row in rows], np.float32)
        if self.data.has_labels:
            good = [row != PADDING_ROW and bool(self.examples[row].is_good) for row in rows]
            made["is_good"] = np.array(good, np.float32)
        for place, row in enumerate(rows):
            if row != PADDING_ROW:
                for index, one in enumerate(self._sequences(row)):
                    _fill(
                        {name: made[name][place, index] for name in self.data.sequence_arrays}, one
                    )
        return made

    @property
    def digest(self) -> str:
        """A short hash of every token and every label."""
        digest = blake2b(digest_size=16)
        for one in self.examples:
            digest.update(str(one.is_good).encode())
            # Labels too: the same text judged otherwise is other data.
            for sequence in one.sequences:
                digest.update(len(sequence.tokens).to_bytes(8, "little"))
                digest.update(sequence.tokens.astype("<i8").tobytes() + sequence.counts.tobytes())
        return digest.hexdigest()

    def _sequences(self, row: int) -> Iterable[ChatTokens]:
        own = self.examples[row].sequences
        if len(own) == _NUM_SEQUENCES:
            return own
        # KTO estimates its KL term from answers to other prompts; the next row's answer is such a
        # one, and is the same in every epoch.
        # A fixed neighbor, and no random one, so that a row needs nothing but its number.
        other = self.examples[(row + 1) % len(self.examples)].sequences[0]
        return own[0], _cut(_with_answer(own[0], other), self.data.longest)


def _with_answer(one: ChatTokens, other: ChatTokens) -> ChatTokens:
    """Return the prompt of a conversation with what another's model answered."""
    here, there = int(one.counts.argmax()), int(other.counts.argmax())
    return ChatTokens(
        np.concatenate([one.tokens[:here], other.tokens[there:]]),
        np.concatenate([np.zeros(here, np.float32), other.weights[there:]]),
    )


def _cut(one: ChatTokens, length: int) -> ChatTokens:
    return ChatTokens(one.tokens[:length], one.weights[:length])


def _fill(row: Batch, one: ChatTokens) -> None:
    if "targets" not in row:
        row["tokens"][: len(one.tokens)] = one.tokens
        row["token_mask"][: len(one.tokens)] = True
        return
    here = slice(len(one.tokens) - 1)
    row["tokens"][here] = one.tokens[:-1]
    row["targets"][here] = one.tokens[1:]
    row["token_mask"][here] = True
    row["loss_weights"][here] = one.counts[1:]


def _reads(source: Any) -> Any:
    """Return what makes the documents of a source: its last transform, or what it reads by."""
    return getattr(source, "reads", None) or next(iter(source.transforms[::-1]), None)
