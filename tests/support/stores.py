"""Token stores for tests."""

from axcore.data import build_store


def built(cfg, folder, **options):
    """Builds the store of a `Data.Config`."""
    source, fraction = cfg.source.build(), cfg.validation_fraction
    return build_store(source, cfg.tokenizer, folder, validation_fraction=fraction, **options)


def contents(folder):
    """Returns what is in the files below a folder, but for drafts."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".tmp"
    }
