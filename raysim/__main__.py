"""`python -m raysim` is the command `raysim`."""

from raysim.cli.app import main

if __name__ == "__main__":
    main()
