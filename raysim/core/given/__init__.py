"""Values that a user gives: limits of numbers, nested values, settings files and paths."""

from raysim.core.given.limits import MOST, Count, Seed
from raysim.core.given.paths import user_path
from raysim.core.given.values import check_plain, parse_json, read_text

__all__ = ["MOST", "Count", "Seed", "check_plain", "parse_json", "read_text", "user_path"]
