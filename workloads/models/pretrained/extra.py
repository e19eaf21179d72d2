"""The extra `finetune`: whether it is installed, and its libraries without their chatter."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec

from raysim.errors import SettingsError

PACKAGES = ("transformers", "peft", "gguf")


def check_extra(setting: str) -> None:
    """Check that the extra `finetune` is installed.

    Args:
        setting: The setting or command that needs it, for the error.

    Raises:
        SettingsError: a package is missing.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise SettingsError(f"{setting}: needs {missing[0]}; pip install 'raysim-fl[finetune]'")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars, reports and warnings of these libraries within a block."""
    import warnings

    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    of_hub = hub.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    hub.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()  # the hub's, too
    try:
        # The bar of a GGUF file can be silenced in no other way.
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        hub.set_verbosity(of_hub)
        if bars:
            logging.enable_progress_bar()
