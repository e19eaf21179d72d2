"""Entry of the command `raysim`, and of `python -m raysim`."""

from raysim.process.exits import end_at_once
from raysim.process.machine.memory_limit import within_memory_limit
from raysim.user_input.user_modules import take_working_directory_off


def main() -> None:
    """Run the command line, from here on without tracebacks of signals and of a lost stdout."""
    end_at_once()  # before the imports, which take seconds
    take_working_directory_off()  # packages try optional imports, which it must not answer
    with within_memory_limit():
        from raysim.cli import app, output

        output.open_streams()
        app.main()


if __name__ == "__main__":
    main()
