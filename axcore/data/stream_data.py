"""`StreamData`: batches of what has no length, with the stream's place in the checkpoint."""

from functools import cached_property
from itertools import islice
from typing import Self

import attrs

from axcore.config import REQUIRED, Fraction, PositiveInt, config, evolve, to_json
from axcore.data.batches import DataShard, batches, validation_order
from axcore.data.concatenation import Concatenated
from axcore.data.corpus import encode_documents
from axcore.data.data_loader import DataLoader
from axcore.data.loading import TrainBatches, ValidationBatches
from axcore.data.packed_spec import packed_batch_spec
from axcore.data.packing import PackedRows, TokenStore
from axcore.data.split import is_validation
from axcore.data.standard_library import StandardLibrary
from axcore.data.store.manifest import tokenizer_digest
from axcore.data.stream import FileStream, Stream
from axcore.data.stream_batches import StreamReading
from axcore.data.tokenizer import ByteTokenizer, Tokenizer
from axcore.errors import DataError
from axcore.module import BatchSpec


class StreamData(DataLoader):
    """Batches of packed documents of a stream, in its own order.

    A run resumes exactly where it was, by any number of processes: each process reads the whole
    stream, and takes its rows of every batch. Nothing is known of what comes: there are no epochs,
    rows are not shuffled, and documents are cut wherever a row ends.
    """

    @config
    class Config(DataLoader.Config):
        """What to read and how to batch it.

        Attributes:
            stream: Where documents come from.
            tokenizer: How text becomes tokens.
            seq_len: T, the tokens of a row.
            masks_documents: As that of `Data.Config`.
            validation_fraction: Share of the documents that is never trained on, in [0, 1).
            validation_scan: How many documents from the stream's beginning are looked at for those.
            validation_batches: How many batches an evaluation reads at most; None reads them all.
        """

        stream: Stream.Config = REQUIRED
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        seq_len: PositiveInt = REQUIRED
        masks_documents: bool = True
        validation_fraction: Fraction = 0.0
        validation_scan: PositiveInt = 1000
        validation_batches: PositiveInt | None = None

        def for_shapes(self) -> Self:
            """Returns a config that reads no file of the user's."""
            stream = FileStream.Config(source=StandardLibrary.Config())
            return evolve(self, stream=stream, tokenizer=ByteTokenizer.Config())

    tokenizer: Tokenizer
    stream: Stream

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.stream = cfg.stream.build()
        self.tokenizer = cfg.tokenizer.build()

    def batch_spec(self) -> BatchSpec:
        """Returns the arrays of `[batch, time]` that `PackedRows.batch` makes."""
        return packed_batch_spec(self.config, self.tokenizer.vocab_size)

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Returns an iterator over one process's part of each global batch.

        Raises:
            DataError: The stream cannot be read, or ends.
            ConfigError: `process_count` does not divide `batch_size`.
        """
        cfg = self.config
        reading = StreamReading(
            stream=self.stream,
            tokenizer=self.tokenizer,
            shard=DataShard(cfg.batch_size, process_index, process_count),
            seq_len=cfg.seq_len,
            masks_documents=cfg.masks_documents,
            validation_fraction=cfg.validation_fraction,
        )
        names = ("seq_len", "batch_size", "masks_documents", "validation_fraction")
        settings = {name: getattr(cfg, name) for name in names}
        tokenizer = tokenizer_digest(cfg.tokenizer)
        identity = {"stream": to_json(cfg.stream), "tokenizer": tokenizer, **settings}
        return TrainBatches(reading, identity)

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Returns batches of the documents held out among the first of the stream.

        Raises:
            DataError: None of them is, though a fraction is asked for.
        """
        cfg = self.config
        shard = DataShard(cfg.batch_size, process_index, process_count)
        rows = PackedRows(
            Concatenated(self._held_out, cfg.seq_len),
            seq_len=cfg.seq_len,
            pad_id=self.tokenizer.pad_id,
            masks_documents=cfg.masks_documents,
        )
        order = validation_order(
            len(rows), batch_size=cfg.batch_size, max_batches=cfg.validation_batches
        )
        return ValidationBatches(batches(rows, order, shard), len(order) // cfg.batch_size)

    def summary(self) -> "StreamSummary":
        """Says what is read; there is nothing to count."""
        return StreamSummary(self.stream.describe())

    @cached_property
    def _held_out(self) -> TokenStore:
        cfg = self.config
        if not cfg.validation_fraction:
            return TokenStore.of([])
        read = self.stream.documents(None, self.tokenizer)
        documents = {
            one.name: one
            for one, _ in islice(read, cfg.validation_scan)
            if is_validation(one.name, cfg.validation_fraction)
        }
        if not documents:
            raise DataError(
                f"None of the first {cfg.validation_scan} documents is held out, and "
                f"validation_fraction is {cfg.validation_fraction}.",
                where="data.validation_scan",
                hint="Raise one of them, or set validation_fraction=0.",
            )
        return TokenStore.of(encode_documents(list(documents.values()), self.tokenizer))


@attrs.frozen
class StreamSummary:
    """What there is to train on.

    Attributes:
        source: Where documents come from.
    """

    source: str

    def __str__(self) -> str:
        return f"{self.source}: of no known length"
