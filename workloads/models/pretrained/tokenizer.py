"""Tokenizer of a pretrained network, opened without its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.api.components import cause
from raysim.errors import DataError
from raysim.workloads.models.pretrained.extra import check_extra, quiet
from raysim.workloads.models.pretrained.folders import configuration, folder_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FILE = "tokenizer.json"


def tokenizer_of(path: str, setting: str = "model.path") -> PreTrainedTokenizerFast:
    """Return the fast tokenizer of a pretrained network; its weights are not read.

    Args:
        path: Folder, name of a pack, or NAME@COMMIT of the hub, as in `model.path`.
        setting: The setting that has it, for errors.

    Raises:
        SettingsError: there is no such folder, or the extra `finetune` is missing.
        DataError: the folder has no tokenizer, or one that does not fit the network.
    """
    origin = f"{setting}={path}"
    check_extra(origin)
    folder = folder_of(path, setting)
    rows = configuration(folder, origin).get("vocab_size")
    if not (folder / FILE).is_file():
        raise DataError(
            f"{origin}: has no {FILE}; put the network's tokenizer there:"
            " AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER) writes it"
        )
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                truncation_side="right",  # whatever the folder says
            )
    except Exception as error:  # a damaged file may raise anything
        raise DataError(f"{origin}: its tokenizer cannot be read: {cause(error)}") from error
    if not tokenizer.is_fast:
        raise DataError(f"{origin}: its tokenizer is none of the library `tokenizers`")
    if isinstance(rows, int) and len(tokenizer) > rows:
        raise DataError(
            f"{origin}: its tokenizer has {len(tokenizer)} tokens, but the network embeds"
            f" {rows}: they do not belong together"
        )
    return tokenizer
