"""`axcore data`: builds token stores, and looks at them."""

import json
from pathlib import Path
from typing import Any

import attrs
import click

from axcore.cli import options
from axcore.config.json_files import parse_json
from axcore.errors import ConfigError

# A ratio of a few megabytes is that of all text to three digits.
_MEASURED_BYTES = 8 << 20
_PACKINGS = ("concatenate", "best_fit", "one_document")


@click.group()
def data() -> None:
    """Build a token store, which training reads fast, or inspect one."""


@data.command()
@options.experiment
@click.argument("store", type=click.Path(path_type=Path))
@options.modify
@options.overrides
@click.option("--processes", type=click.IntRange(1), help="Workers; one for each core by default.")
def build(
    experiment: str,
    store: Path,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    processes: int | None,
) -> None:
    """Tokenize the text of EXPERIMENT, a name or a config file, into the folder STORE.

    A build that was stopped resumes where it was. To train on the store:
    axcore train EXPERIMENT --modify "token_store(path=STORE)"
    """
    from axcore.data import Data, build_store
    from axcore.data.store.build import ProgressLine
    from axcore.experiments.named import load_experiment

    cfg = load_experiment(experiment, overrides, changes=changes).data
    if not isinstance(cfg, Data.Config):
        raise ConfigError(f"{experiment} trains on no text: its data is a {type(cfg).__qualname__}")
    with ProgressLine() as line:
        built = build_store(
            cfg.source.build(),
            cfg.tokenizer,
            store,
            validation_fraction=cfg.validation_fraction,
            processes=processes,
            report=line.show,
        )
    train, bad = built.splits["train"], built.manifest.bad_records
    click.echo(f"{store}: {train.num_documents:,} documents, {train.num_tokens:,} tokens")
    if bad:
        click.echo(f"{bad:,} bad records were left out: {store / 'quarantine.jsonl'}")


@data.command()
@options.experiment
@click.argument("folder", type=options.OutputPath(is_folder=True))
@click.option("--vocab-size", default=8192, show_default=True, help="Tokens, special ones too.")
@click.option("--kind", type=click.Choice(["bpe", "unigram"]), default="bpe", show_default=True)
@click.option("--max-mib", default=1024, show_default=True, type=click.IntRange(1), help="Of text.")
@click.option(
    "--compare",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The tokenizer.json, or its folder, of another one to compare with. Repeatable.",
)
@options.modify
@options.overrides
@options.as_json
def tokenizer(
    experiment: str,
    folder: Path,
    vocab_size: int,
    kind: Any,
    max_mib: int,
    compare: tuple[Path, ...],
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a tokenizer on the text of EXPERIMENT, and write it to FOLDER.

    It is trained on the first texts that the experiment trains on, and measured on those that it
    holds out.
    """
    from axcore.data import Data
    from axcore.data.tokenizers.hugging_face_tokenizer import tokenizer_in
    from axcore.data.tokenizers.tokenizer import ByteTokenizer
    from axcore.data.tokenizers.training import (
        END,
        compression,
        held_out_texts,
        train_tokenizer,
        training_texts,
    )
    from axcore.experiments.named import load_experiment
    from axcore.report.table import columns

    cfg = load_experiment(experiment, overrides, changes=changes).data
    if not isinstance(cfg, Data.Config):
        raise ConfigError(f"{experiment} trains on no text: its data is a {type(cfg).__qualname__}")
    # Before the training, whose result would wait for a path that is wrong.
    others = {
        str(path): tokenizer_in(path.parent if path.is_file() else path).build() for path in compare
    }
    source, fraction = cfg.source.build(), cfg.validation_fraction
    texts = training_texts(source, fraction, max_mib * 2**20)
    made = train_tokenizer(texts, folder, vocab_size=vocab_size, kind=kind)
    held_out = held_out_texts(source, fraction, _MEASURED_BYTES)
    tokenizers = {str(folder): made.build(), **others, "bytes": ByteTokenizer.Config().build()}
    found = [compression(name, one, held_out) for name, one in tokenizers.items()]
    if as_json:
        rows = [{**attrs.asdict(one), "bytes_per_token": one.bytes_per_token} for one in found]
        click.echo(json.dumps(rows, indent=2))
        return
    cells = [
        (one.name, f"{one.vocab_size:,}", f"{one.num_tokens:,}", f"{one.bytes_per_token:.3f}")
        for one in found
    ]
    if held_out:
        click.echo(f"{found[0].num_bytes:,} bytes that were held out:")
        click.echo(columns(("tokenizer", "vocabulary", "tokens", "bytes a token"), cells))
    else:
        click.echo("nothing is held out to measure it on: data.validation_fraction is 0")
    click.echo(
        f"\nto train with it: axcore train {experiment} --modify "
        f"'hugging_face(path={made.path}, settings_path={made.settings_path}, "
        f'end_tokens=["{END}"])\' '
        f"--set model.vocab_size={tokenizers[str(folder)].vocab_size}"
    )


@data.command()
@options.experiment
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--teacher", required=True, help="A run, or the folder of a pretrained checkpoint.")
@click.option("--top-k", default=32, show_default=True, type=click.IntRange(1), help="Of a place.")
@click.option("--rows", default=8, show_default=True, type=click.IntRange(1), help="At once.")
@options.modify
@options.overrides
def teach(
    experiment: str,
    folder: Path,
    teacher: str,
    top_k: int,
    rows: int,
    changes: tuple[str, ...],
    overrides: tuple[str, ...],
) -> None:
    """Write the tokens that a teacher finds likeliest in the rows of EXPERIMENT into FOLDER.

    To train on them: axcore train EXPERIMENT --modify "distill_top_k(teacher_cache=FOLDER)"
    """
    from axcore.data import Data
    from axcore.experiments.named import load_experiment
    from axcore.runs import write_teacher_cache

    cfg = load_experiment(experiment, overrides, changes=changes).data
    if type(cfg) is not Data.Config:
        raise ConfigError(
            f"{experiment} trains on no packed text: its data is a {type(cfg).__qualname__}"
        )
    num_rows = write_teacher_cache(teacher, cfg, folder, top_k=top_k, batch_size=rows)
    click.echo(f"{folder}: {num_rows:,} rows of {cfg.seq_len:,} tokens, {top_k} likeliest of each")


@data.command()
@click.argument("store", type=click.Path(path_type=Path))
@options.as_json
@click.option("--html", type=options.OutputPath(), help="Write a picture of a batch there.")
@click.option("--rows", default=12, show_default=True, type=click.IntRange(1), help="Of the batch.")
@click.option("--seq-len", default=512, show_default=True, type=click.IntRange(1), help="Of a row.")
@click.option("--packing", type=click.Choice(_PACKINGS), default=_PACKINGS[0], show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the batch's order.")
def show(store: Path, as_json: bool, html: Path | None, **batch: Any) -> None:
    """Show what STORE contains, and what made it; or, with --html, its first packed batch."""
    from axcore.data import open_store

    opened = open_store(store)
    if html is not None:
        _write_picture(store, html, **batch)
        return
    manifest = opened.manifest
    facts: dict[str, Any] = {
        "source": manifest.source,
        "source digest": manifest.source_digest,
        "tokenizer": parse_json(manifest.tokenizer),
        "tokenizer digest": manifest.tokenizer_digest,
        "validation fraction": manifest.validation_fraction,
        "records": manifest.records,
        "bad records": manifest.bad_records,
        "left out": manifest.dropped,
        "token": manifest.dtype,
    }
    for name, split in opened.splits.items():
        facts[name] = {
            "documents": split.num_documents,
            "tokens": split.num_tokens,
            "shards": len(split.shards),
            "digest": split.digest,
        }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        click.echo(f"{name + ':':<22}{_said(value)}")


@data.command()
@click.argument("store", type=click.Path(path_type=Path))
@options.as_json
def stats(store: Path, as_json: bool) -> None:
    """Show how long the documents of STORE are; all of their lengths are read."""
    from axcore.data import open_store
    from axcore.data.store.reader import length_stats
    from axcore.report.table import columns

    found = {name: length_stats(split) for name, split in open_store(store).splits.items()}
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    cells = [
        (name, *(f"{value:,.0f}" for value in one.values())) for name, one in found.items() if one
    ]
    headings = ("SPLIT", *(name.upper() for name in found["train"]))
    click.echo(columns(headings, cells))


@data.command()
@click.argument("store", type=click.Path(path_type=Path))
def verify(store: Path) -> None:
    """Read all of STORE, and check that it is what was written; exits with 6 where it is not."""
    from axcore.data import open_store
    from axcore.errors import DataError

    opened = open_store(store)
    checked = [(shard.name, is_whole) for shard, is_whole in opened.verify()]
    damaged = [name for name, is_whole in checked if not is_whole]
    if damaged:
        raise DataError(
            f"{len(damaged)} of {len(checked)} shards are not what was written: "
            f"{', '.join(damaged[:10])}.",
            where=str(store / "shards"),
            hint="Copy the store again, or build it again.",
        )
    click.echo(f"{len(checked)} shards are what was written")


@data.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--documents", default=3, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--split", type=click.Choice(["train", "validation"]), default="train")
@click.option("--seed", default=0, show_default=True, help="Which ones.")
@click.option("--tokens", default=200, show_default=True, type=click.IntRange(1), help="Of each.")
def sample(store: Path, documents: int, split: str, seed: int, tokens: int) -> None:
    """Show the beginnings of some documents of STORE, as its own tokenizer writes them."""
    import random

    from axcore.cli.options import escape_control_characters
    from axcore.data import open_store

    opened = open_store(store)
    chosen, tokenizer = opened.splits[split], opened.tokenizer()
    count = min(documents, chosen.num_documents)
    for index in sorted(random.Random(seed).sample(range(chosen.num_documents), count)):
        document = chosen.document(index)
        click.echo(f"-- {split} document {index}, {len(document):,} tokens")
        click.echo(escape_control_characters(tokenizer.decode(document[:tokens])))


def _write_picture(store: Path, html: Path, *, rows: int, **fields: Any) -> None:
    from axcore.data import Data, StoredSource, open_store
    from axcore.data.store.manifest import tokenizer_config
    from axcore.report.page import packed_batch_html

    manifest = open_store(store).manifest
    data = Data.Config(
        source=StoredSource.Config(path=str(store)),
        tokenizer=tokenizer_config(manifest, store),
        validation_fraction=manifest.validation_fraction,
        batch_size=rows,
        **fields,
    ).build()
    title = f"{store} · {manifest.source} · {fields['packing']}"
    page = packed_batch_html(next(data.train()), data.tokenizer, title=title)
    options.write_output(html, page)
    click.echo(f"{html}: {rows} rows of {fields['seq_len']} tokens")


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(one)}" for name, one in value.items() if one is not None)
    return f"{value:,}" if isinstance(value, int) else str(value)
