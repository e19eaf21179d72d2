"""`python -m raysim` is the command `raysim`."""

from raysim.cli import main

if __name__ == "__main__":
    main()
