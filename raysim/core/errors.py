"""Errors that a user can act on.

Every one carries a single line that names the setting, file, client or tensor, its value, and what
is allowed or what to do. The command line prints that line, without a traceback, and exits with 2.
"""


class RaysimError(Exception):
    """Base of every error that is the user's to mend; its message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class SettingsError(RaysimError):
    """A setting is unknown, has the wrong type or is out of range."""


class DataError(RaysimError):
    """A data file is missing, damaged or does not suit the partition asked for."""


class RunError(RaysimError):
    """A run directory, a checkpoint or a client cannot be used."""


class MachineError(RunError):
    """A disk, a node or the cluster failed, not the experiment: the run can be resumed."""
