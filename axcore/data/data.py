"""`Data`: a source, a tokenizer and a batch shape, as batches to train on and to evaluate on."""

from functools import cached_property
from typing import Any, Self

import attrs

from axcore.config import REQUIRED, Fraction, PositiveInt, config, evolve
from axcore.data.batches import DataShard, batches, train_order, validation_order
from axcore.data.corpus import Corpus, read_corpus
from axcore.data.data_loader import DataLoader
from axcore.data.document import Source
from axcore.data.loading import TrainBatches, ValidationBatches
from axcore.data.packing import PackedRows, TokenStore
from axcore.data.standard_library import StandardLibrary
from axcore.data.tokenizer import ByteTokenizer, Tokenizer
from axcore.module import ArraySpec, BatchSpec


@attrs.frozen
class DataSummary:
    """What there is to train on, in numbers; as text, one line for people.

    Attributes:
        source: Where the text comes from.
        train_documents: Documents to train on.
        train_tokens: Their tokens, with those that frame documents.
        validation_documents: Documents that are never trained on.
        validation_tokens: Their tokens.
        batches_per_epoch: Batches that hold every training token once; rarely a whole number.
    """

    source: str
    train_documents: int
    train_tokens: int
    validation_documents: int
    validation_tokens: int
    batches_per_epoch: float

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.train_documents:,} documents, {self.train_tokens:,} tokens, "
            f"{self.batches_per_epoch:,.1f} batches an epoch; validation: "
            f"{self.validation_documents:,} documents, {self.validation_tokens:,} tokens"
        )


class Data(DataLoader):
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
    class Config(DataLoader.Config):
        """What to read and how to batch it.

        Attributes:
            source: Where documents come from.
            tokenizer: How text becomes tokens.
            seq_len: T, the tokens of a row.
            batch_size: Rows of the global batch, over all processes.
            seed: Decides the order of training rows.
            shuffle: Whether training rows are shuffled, in another order each epoch.
            masks_documents: Whether attention is kept within documents; if not, each row is read as
                one, and batches have no `segment_ids`.
            validation_fraction: Share of the documents that is never trained on, in [0, 1).
            validation_batches: How many batches an evaluation reads at most; None reads them all.
        """

        source: Source.Config = StandardLibrary.Config()
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        seq_len: PositiveInt = REQUIRED
        batch_size: PositiveInt = REQUIRED
        seed: int = 0
        shuffle: bool = True
        masks_documents: bool = True
        validation_fraction: Fraction = 0.05
        validation_batches: PositiveInt | None = None

        def for_shapes(self) -> Self:
            """Returns a config that reads no file of the user's."""
            return evolve(self, source=StandardLibrary.Config(), tokenizer=ByteTokenizer.Config())

    tokenizer: Tokenizer
    source: Source

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.source = cfg.source.build()
        self.tokenizer = cfg.tokenizer.build()

    def batch_spec(self) -> BatchSpec:
        """Returns the arrays of `[batch, time]` that `PackedRows.batch` makes."""
        cfg = self.config
        left_out = set() if cfg.masks_documents else {"segment_ids"}
        num_values = dict.fromkeys(("tokens", "targets"), self.tokenizer.vocab_size)
        return BatchSpec(
            arrays={
                name: ArraySpec(
                    shape=(cfg.batch_size, cfg.seq_len),
                    axes=("batch", "time"),
                    dtype=dtype,
                    num_values=num_values.get(name),
                )
                for name, dtype in PackedRows.DTYPES.items()
                if name not in left_out
            },
            unit="token",
            num_units=cfg.batch_size * cfg.seq_len,
            sized_by={"batch": "batch_size", "time": "seq_len"},
        )

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
        shard = DataShard(cfg.batch_size, process_index, process_count)
        rows = self._rows(self._corpus.train)
        order = train_order(len(rows), seed=cfg.seed, shuffle=cfg.shuffle)
        return TrainBatches(batches(rows, order, shard), self._identity)

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Returns the validation batches, with as many for every process.

        The last one is filled up with rows of padding. There are none when `validation_fraction`
        is 0.

        Raises:
            DataError: As `train` does.
        """
        cfg = self.config
        shard = DataShard(cfg.batch_size, process_index, process_count)
        rows = self._rows(self._corpus.validation)
        order = validation_order(
            len(rows), batch_size=cfg.batch_size, max_batches=cfg.validation_batches
        )
        return ValidationBatches(batches(rows, order, shard), len(order) // cfg.batch_size)

    def summary(self) -> DataSummary:
        """Reads the source, and says how much text there is.

        Raises:
            DataError: The source cannot be read, or holds nothing to train on.
        """
        train, validation = self._corpus.train, self._corpus.validation
        return DataSummary(
            source=self.source.describe(),
            train_documents=train.num_documents,
            train_tokens=train.num_tokens,
            validation_documents=validation.num_documents,
            validation_tokens=validation.num_tokens,
            batches_per_epoch=len(self._rows(train)) / self.config.batch_size,
        )

    @cached_property
    def _corpus(self) -> Corpus:
        return read_corpus(self.source, self.tokenizer, self.config.validation_fraction)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that a training batch depends on, besides its step."""
        names = ("seq_len", "batch_size", "seed", "shuffle")
        settings = {name: getattr(self.config, name) for name in names}
        if not self.config.masks_documents:
            settings["masks_documents"] = False  # runs from before there was a choice masked them
        return {"tokens": self._corpus.train.digest, **settings}

    def _rows(self, store: TokenStore) -> PackedRows:
        cfg = self.config
        return PackedRows(
            store,
            seq_len=cfg.seq_len,
            pad_id=self.tokenizer.pad_id,
            masks_documents=cfg.masks_documents,
        )
