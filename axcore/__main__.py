"""`python -m axcore` is the command `axcore`."""

from axcore.cli.interrupts import exits_on_interrupt


def run() -> None:
    """Run the command; Ctrl-C while it is imported ends it with one line."""
    with exits_on_interrupt():
        from axcore.cli.main import main
    main()


if __name__ == "__main__":
    run()
