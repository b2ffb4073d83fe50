"""The storages that checkpoints can be kept in."""

from collections.abc import Iterator

from axcore.plugins import CheckpointStorage, Ref, hook


@hook.checkpoint_storages
def checkpoint_storages() -> Iterator[CheckpointStorage]:
    """Where checkpoints can be kept."""
    yield CheckpointStorage(
        name="file",
        fn=Ref("axcore.checkpoint.steps:open_directory"),
        summary="A directory, which all processes share",
    )
    yield CheckpointStorage(
        name="mirror",
        fn=Ref("axcore.checkpoint.replicated_storage:open_replicated"),
        summary="A directory on a fast disk, and a copy on a durable one",
    )
    for scheme, target, store in (
        ("s3", "axcore.checkpoint.object_store:open_s3", "S3"),
        ("gs", "axcore.checkpoint.object_store:open_gs", "Cloud Storage"),
        ("az", "axcore.checkpoint.object_store:open_az", "Blob Storage"),
    ):
        yield CheckpointStorage(
            name=scheme,
            fn=Ref(target),
            summary=f"An object store ({store}), staged on a fast disk",
        )
