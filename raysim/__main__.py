"""`python -m raysim` is the command `raysim`."""

from raysim.execution.module_path import put_working_directory_last

if __name__ == "__main__":
    put_working_directory_last()  # before the command line imports packages
    from raysim.cli.app import main

    main()
