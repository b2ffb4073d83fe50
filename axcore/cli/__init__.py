"""The command line. `main` is the frame; each other file is one command."""
