"""What goes wrong with checkpoints, as warnings and errors of their own."""


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped or set aside, or a disk did not do as asked; nothing was lost."""
