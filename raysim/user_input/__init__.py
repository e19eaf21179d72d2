"""Values that a user gives: limits of numbers, overrides, settings files and paths.

Without heavy imports: before the command line imports anything else, it checks whether the working
directory is a run directory (`run_folders`).
"""

from raysim.user_input.paths import check_inside, portable_name, user_path
from raysim.user_input.resume_settings import decides_result, may_change, may_grow
from raysim.user_input.starts import DATASET, short_name
from raysim.user_input.values import (
    RepeatedKeyError,
    as_typed,
    canonical,
    check_plain,
    dotted,
    key_text,
    label_text,
    or_none,
    override_text,
    parse_json,
    parse_toml,
    read_file,
    read_text,
    resume_advice,
)

__all__ = [
    "DATASET",
    "RepeatedKeyError",
    "as_typed",
    "canonical",
    "check_inside",
    "check_plain",
    "decides_result",
    "dotted",
    "key_text",
    "label_text",
    "may_change",
    "may_grow",
    "or_none",
    "override_text",
    "parse_json",
    "parse_toml",
    "portable_name",
    "read_file",
    "read_text",
    "resume_advice",
    "short_name",
    "user_path",
]
