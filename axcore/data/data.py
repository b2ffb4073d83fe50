"""`Data`: a source, a tokenizer and a batch shape, as batches to train on and to evaluate on."""

import sys
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, Self

import attrs

from axcore.config import REQUIRED, Fraction, PositiveInt, config, evolve
from axcore.data.cache import cache_folder
from axcore.data.data_loader import DataLoader, TrainBatches, ValidationBatches
from axcore.data.document import Source
from axcore.data.packing.batches import (
    DataShard,
    Order,
    Rows,
    batches,
    train_order,
)
from axcore.data.packing.corpus import Corpus, check_corpus, read_corpus
from axcore.data.packing.packing import PackedRows, TokenReader, packed_batch_spec
from axcore.data.packing.row_layout import Packing, row_layout
from axcore.data.packing.shuffling import DocumentShuffle
from axcore.data.sources.file_source import FileSource
from axcore.data.sources.mixture import (
    SOURCE_IDS,
    JoinedOrder,
    JoinedRows,
    MixedOrder,
    Mixture,
    read_so_far,
)
from axcore.data.sources.text_files import StandardLibrary
from axcore.data.store.build import ProgressLine, build_store
from axcore.data.store.plan import plan_identity, source_size
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from axcore.errors import ConfigError
from axcore.module import ArraySpec, BatchSpec, LossGroups

# Larger ones are built once into a store, which all processes of a machine map.
LARGEST_IN_MEMORY = 64 << 20
"""Bytes of a source that every process tokenizes and holds by itself, which takes seconds."""


@attrs.frozen
class DataSummary:
    """What there is to train on, in numbers; as text, one line for people.

    Attributes:
        source: Where the text comes from.
        train_documents: Documents to train on.
        train_tokens: Their tokens, with those that frame documents.
        validation_documents: Documents that are never trained on.
        validation_tokens: Their tokens.
        batches_per_epoch: Batches that hold every training token once; rarely a whole number. Of a
            mixture, those of all its sources together, whatever their weights.
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
    the number of shards decides what is in a row. Here one packing holds for the full corpus and
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
            shuffle: Whether documents are shuffled before they are packed, and rows after it, in
                another order each epoch.
            repacks_each_epoch: Whether documents are shuffled and packed again each epoch, so that
                others share a row; if not, each epoch has the same rows. Needs `shuffle`, and a
                packing by which documents share rows.
            packing: How documents share rows: `concatenate` cuts them wherever a row ends, and
                fills every row; `best_fit` cuts only those that are longer than a row;
                `one_document` puts each into rows of its own.
            masks_documents: Whether attention is kept within documents; if not, each row is read as
                one, and batches have a `token_mask` instead of `segment_ids`.
            validation_fraction: Share of the documents that is never trained on, in [0, 1).
            validation_batches: How many batches an evaluation reads at most; None reads them all.
        """

        source: Source.Config = StandardLibrary.Config()
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        seq_len: PositiveInt = REQUIRED
        batch_size: PositiveInt = REQUIRED
        seed: int = 0
        shuffle: bool = True
        repacks_each_epoch: bool = False
        packing: Packing = "concatenate"
        masks_documents: bool = True
        validation_fraction: Fraction = 0.05
        validation_batches: PositiveInt | None = None

        def for_shapes(self) -> Self:
            """Return a config that reads no file of the user's."""
            return evolve(self, source=StandardLibrary.Config(), tokenizer=ByteTokenizer.Config())

    tokenizer: Tokenizer
    source: Source

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if cfg.repacks_each_epoch and (not cfg.shuffle or cfg.packing == "one_document"):
            raise ConfigError(
                f"repacks_each_epoch is set, shuffle is {cfg.shuffle} and packing {cfg.packing!r}, "
                "whose rows are the same in each epoch",
                where="data.repacks_each_epoch",
                hint="set shuffle=True and another packing than one_document, or leave it out",
            )
        self.source = cfg.source.build()
        # Built at once: the size of its vocabulary is part of the batch spec.
        self.tokenizer = cfg.tokenizer.build()

    def batch_spec(self) -> BatchSpec:
        """Return the arrays that `PackedRows.batch` makes, and the rows' sources of a mixture."""
        spec = packed_batch_spec(self.config, self.tokenizer.vocab_size)
        sources = tuple(self.source.components) if isinstance(self.source, Mixture) else ()
        if len(sources) < 2:
            return spec
        rows = self.config.batch_size
        ids = ArraySpec(shape=(rows,), axes=("batch",), dtype="int32", num_values=len(sources))
        return attrs.evolve(
            spec,
            arrays={**spec.arrays, SOURCE_IDS: ids},
            loss_groups=LossGroups(array=SOURCE_IDS, names=sources),
        )

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Return an iterator without end over one process's part of each global batch.

        Args:
            process_index: Which process this is, from 0.
            process_count: How many processes share each batch, in contiguous blocks of rows.

        Raises:
            DataError: The source cannot be read, or contains nothing to train on.
            ConfigError: `process_count` does not divide `batch_size`.
        """
        cfg = self.config
        shard = DataShard(cfg.batch_size, process_index, process_count)
        is_mixture = isinstance(self.source, Mixture)
        return TrainBatches(
            batches(self.rows("train"), self._order, shard),
            self._identity,
            read_so_far=read_so_far if is_mixture else None,
        )

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Return the validation batches, with as many for every process.

        The last one is filled up with rows of padding. There are none when `validation_fraction`
        is 0.

        Raises:
            DataError: As `train` does.
        """
        cfg = self.config
        shard = DataShard(cfg.batch_size, process_index, process_count)
        # One order over all sources would mix them by size; validation reads each in turn.
        lengths = [len(one) for one in self._validation_rows]
        return ValidationBatches.of(
            self.rows("validation"),
            shard,
            max_batches=cfg.validation_batches,
            reorder=(lambda order: JoinedOrder(lengths, order)) if len(lengths) > 1 else None,
        )

    def rows(self, split: Literal["train", "validation"]) -> Rows:
        """Return the rows of a split, each made from its number alone.

        Raises:
            DataError: As `train` does.
        """
        return _joined(self._train_rows if split == "train" else self._validation_rows)

    @property
    def rows_identity(self) -> dict[str, Any]:
        """Everything that the rows of both splits depend on."""
        held_out = [corpus.validation.digest for corpus in self._corpora.values()]
        return {**self._identity, "validation": held_out}

    def summary(self) -> DataSummary:
        """Read the source, and says how much text there is.

        Raises:
            DataError: The source cannot be read, or contains nothing to train on.
        """
        train = [corpus.train for corpus in self._corpora.values()]
        validation = [corpus.validation for corpus in self._corpora.values()]
        return DataSummary(
            source=self.source.describe(),
            train_documents=sum(one.num_documents for one in train),
            train_tokens=sum(one.num_tokens for one in train),
            validation_documents=sum(one.num_documents for one in validation),
            validation_tokens=sum(one.num_tokens for one in validation),
            batches_per_epoch=sum(map(len, self._train_rows)) / self.config.batch_size,
        )

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        """The tokens of each source of a mixture, or of the one source."""
        sources = self.source.components if isinstance(self.source, Mixture) else {"": self.source}
        fraction = self.config.validation_fraction
        found = {
            name: _open_corpus(source, self.tokenizer, fraction) for name, source in sources.items()
        }
        for name, source in sources.items():
            self._say_what_is_cut(source, found[name])
        return found

    def _say_what_is_cut(self, source: Source, corpus: Corpus) -> None:
        """Return how many conversations are cut into rows that lack what they answer."""
        if not (isinstance(source, FileSource) and source.makes_loss_mask):
            return
        splits, limit = (corpus.train, corpus.validation), self.config.seq_len + 1
        num_cut = sum(int((one > limit).sum()) for split in splits for one in split.lengths())
        if num_cut:
            print(
                f"data: {num_cut:,} of {sum(split.num_documents for split in splits):,} documents "
                f"of {source.describe()} are longer than data.seq_len={limit - 1} and are cut: the "
                "rest of an answer is a row without its beginning",
                file=sys.stderr,
            )

    @cached_property
    def _train_rows(self) -> list[PackedRows]:
        """The rows of each source, its documents shuffled by a key of its own."""
        cfg = self.config
        return [
            self._rows(
                corpus.train,
                # The name of the source is in the key, so that adding
                # one to a mixture leaves the others' order alone.
                DocumentShuffle(f"{cfg.seed} {name}", cfg.repacks_each_epoch)
                if cfg.shuffle
                else None,
            )
            for name, corpus in self._corpora.items()
        ]

    @cached_property
    def _validation_rows(self) -> list[PackedRows]:
        return [self._rows(corpus.validation) for corpus in self._corpora.values()]

    @cached_property
    def _order(self) -> Order:
        cfg, rows = self.config, self._train_rows
        settings = {"shuffle": cfg.shuffle, "counts_epochs": cfg.repacks_each_epoch}
        if not isinstance(self.source, Mixture):
            return train_order(len(rows[0]), seed=cfg.seed, **settings)
        train = [corpus.train for corpus in self._corpora.values()]
        return self.source.order(
            rows,
            [
                self._rows_a_unit(self.source.config.by, *one)
                for one in zip(rows, train, strict=True)
            ],
            batch_size=cfg.batch_size,
            seed=cfg.seed,
            **settings,
        )

    def _rows_a_unit(self, by: str, rows: PackedRows, store: TokenReader) -> float:
        """Return how many rows a source takes for each of what its share in a mixture is of."""
        if by == "documents":
            return len(rows) / store.num_documents
        if self.config.packing == "concatenate":
            return 1.0  # rows that are full, but for a source's last one, hold equally many tokens
        return len(rows) / (store.num_tokens - store.num_documents)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that a training batch depends on, in addition to its step."""
        names = ("seq_len", "batch_size", "seed", "shuffle")
        settings = {name: getattr(self.config, name) for name in names}
        # Left out where it is the default, as in positions
        # that were saved before the choice existed.
        if not self.config.masks_documents:
            settings["masks_documents"] = False  # runs from before there was a choice masked them
        if self.config.repacks_each_epoch:
            settings["repacks_each_epoch"] = True
        if self.config.packing != "concatenate":
            settings["packing"] = self.config.packing
        digests = {name: corpus.train.digest for name, corpus in self._corpora.items()}
        if not isinstance(self._order, MixedOrder):
            return {"tokens": digests[""], **settings}
        return {"tokens": digests, "mixture": self._order.identity, **settings}

    def _rows(self, store: TokenReader, shuffle: DocumentShuffle | None = None) -> PackedRows:
        cfg = self.config
        cache = cache_folder() / "packing"
        return PackedRows(
            row_layout(store, cfg.seq_len, cfg.packing, cache=cache, shuffle=shuffle),
            seq_len=cfg.seq_len,
            pad_id=self.tokenizer.pad_id,
            masks_documents=cfg.masks_documents,
        )


def _joined(rows: Sequence[PackedRows]) -> Rows:
    return rows[0] if len(rows) == 1 else JoinedRows(rows)


def _open_corpus(source: Source, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
    """Return the tokens of a source.

    Files of more than `LARGEST_IN_MEMORY` bytes in all are built into a store in the cache, and
    found there the next time.

    Raises:
        DataError: The source cannot be read, or there is nothing to train on.
    """
    corpus = source.open_tokens(tokenizer, validation_fraction)
    if corpus is not None:
        check_corpus(corpus, source, validation_fraction)
        return corpus
    if isinstance(source, FileSource) and source_size(source) > LARGEST_IN_MEMORY:
        return _cached(source, tokenizer, validation_fraction)
    return read_corpus(source, tokenizer, validation_fraction)


def _cached(source: FileSource, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
    # By what decides the tokens, not by time: another config or another file is another folder.
    identity = plan_identity(source, tokenizer.config, validation_fraction)
    key = blake2b(repr(sorted(identity.items())).encode(), digest_size=16).hexdigest()
    folder = cache_folder() / key
    print(f"data: tokens of {source.describe()} are kept in {folder}", file=sys.stderr)
    with ProgressLine() as line:
        store = build_store(
            source,
            tokenizer.config,
            folder,
            validation_fraction=validation_fraction,
            report=line.show,
        )
    return Corpus(store.splits["train"], store.splits["validation"])
