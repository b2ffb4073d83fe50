"""`Data`: a source, a tokenizer and a batch shape, as batches to train on and to evaluate on."""

from functools import cached_property
from typing import Any

import attrs

from axcore.config import REQUIRED, Configurable, config
from axcore.data.batches import Share, batches, heldout_order, train_order
from axcore.data.corpus import Corpus, read_corpus
from axcore.data.document import Source
from axcore.data.loading import HeldoutBatches, TrainBatches
from axcore.data.packing import PackedRows, TokenStore
from axcore.data.standard_library import StandardLibrary
from axcore.data.tokenizer import ByteTokenizer, Tokenizer
from axcore.errors import ConfigError


@attrs.frozen
class DataSummary:
    """What there is to train on, in numbers; as text, one line for people.

    Attributes:
        source: Where the text comes from.
        train_documents: Documents to train on.
        train_tokens: Their tokens, with those that frame documents.
        heldout_documents: Documents held out.
        heldout_tokens: Their tokens.
        batches_per_epoch: Batches that hold every training token once; rarely a whole number.
    """

    source: str
    train_documents: int
    train_tokens: int
    heldout_documents: int
    heldout_tokens: int
    batches_per_epoch: float

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.train_documents:,} documents, {self.train_tokens:,} tokens, "
            f"{self.batches_per_epoch:,.1f} batches an epoch; held out: "
            f"{self.heldout_documents:,} documents, {self.heldout_tokens:,} tokens"
        )


class Data(Configurable):
    """Batches of packed documents.

    A batch is a dict of numpy arrays [B, T], B the process's rows and T `seq_len`; see
    `PackedRows.batch` for what is in it. The source is read when the first batch or the summary is
    asked for, and only then: a `Data` that is built for its tokenizer reads no text.

    Differs: grain's own packing makes rows from a stream, one shard of documents at a time, so that
    the number of shards decides what is in a row. Here one packing holds for the whole corpus and
    any row can be computed from its number, so there are no shards to choose, rows of all documents
    are shuffled together, and the saved position is a number.
    """

    @config
    class Config(Configurable.Config):
        """What to read and how to batch it.

        Attributes:
            source: Where documents come from.
            tokenizer: How text becomes tokens.
            seq_len: T, the tokens of a row.
            batch_size: Rows of the global batch, over all processes.
            seed: Decides the order of training rows.
            shuffle: Whether training rows are shuffled, anew each epoch.
            heldout_fraction: Share of the documents that is never trained on, in [0, 1).
            heldout_batches: How many batches an evaluation reads at most; None reads them all.
        """

        source: Source.Config = StandardLibrary.Config()
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        seq_len: int = REQUIRED
        batch_size: int = REQUIRED
        seed: int = 0
        shuffle: bool = True
        heldout_fraction: float = 0.05
        heldout_batches: int | None = None

    tokenizer: Tokenizer
    source: Source

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.source = cfg.source.build()
        self.tokenizer = cfg.tokenizer.build()
        _check(cfg)

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Returns an iterator without end over one process's part of each global batch.

        Args:
            process_index: Which process this is, from 0.
            process_count: How many processes share each batch, in contiguous blocks of rows.

        Raises:
            DataError: The source cannot be read, or holds nothing to train on.
            ConfigError: `process_count` does not divide `batch_size`.
        """
        cfg = self.config
        share = Share(cfg.batch_size, process_index, process_count)
        rows = self._rows(self._corpus.train)
        order = train_order(len(rows), seed=cfg.seed, shuffle=cfg.shuffle)
        return TrainBatches(batches(rows, order, share), self._identity)

    def heldout(self, *, process_index: int = 0, process_count: int = 1) -> HeldoutBatches:
        """Returns the held-out batches, with as many for every process.

        The last one is filled up with rows of padding. There are none when `heldout_fraction`
        is 0.

        Raises:
            As `train`.
        """
        cfg = self.config
        share = Share(cfg.batch_size, process_index, process_count)
        rows = self._rows(self._corpus.heldout)
        order = heldout_order(len(rows), batch_size=cfg.batch_size, max_batches=cfg.heldout_batches)
        return HeldoutBatches(batches(rows, order, share), len(order) // cfg.batch_size)

    def summary(self) -> DataSummary:
        """Reads the source, and says how much text there is.

        Raises:
            DataError: The source cannot be read, or holds nothing to train on.
        """
        train, heldout = self._corpus.train, self._corpus.heldout
        return DataSummary(
            source=self.source.describe(),
            train_documents=train.num_documents,
            train_tokens=train.num_tokens,
            heldout_documents=heldout.num_documents,
            heldout_tokens=heldout.num_tokens,
            batches_per_epoch=len(self._rows(train)) / self.config.batch_size,
        )

    @cached_property
    def _corpus(self) -> Corpus:
        return read_corpus(self.source, self.tokenizer, self.config.heldout_fraction)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that a training batch depends on, besides its step."""
        names = ("seq_len", "batch_size", "seed", "shuffle")
        settings = {name: getattr(self.config, name) for name in names}
        return {"tokens": self._corpus.train.digest, **settings}

    def _rows(self, store: TokenStore) -> PackedRows:
        return PackedRows(store, seq_len=self.config.seq_len, pad_id=self.tokenizer.pad_id)


def _check(cfg: Data.Config) -> None:
    problems = [
        f"{name} is {value}; expected 1 or more."
        for name, value in (
            ("seq_len", cfg.seq_len),
            ("batch_size", cfg.batch_size),
            ("heldout_batches", cfg.heldout_batches),
        )
        if value is not REQUIRED and value is not None and value < 1
    ]
    if not 0 <= cfg.heldout_fraction < 1:
        problems.append(
            f"heldout_fraction is {cfg.heldout_fraction}; expected 0 or more and less than 1."
        )
    if problems:
        raise ConfigError("\n".join(problems))
