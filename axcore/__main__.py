"""`python -m axcore` is the command `axcore`."""

from axcore.cli.main import main

if __name__ == "__main__":
    main()
