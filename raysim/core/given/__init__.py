"""Values that a user gives: limits of numbers, nested values, settings files and paths.

Free of heavy imports: the command line reads the working directory's kind before it imports others.
"""

from raysim.core.given.paths import user_path
from raysim.core.given.values import check_plain, parse_json, read_text

__all__ = ["check_plain", "parse_json", "read_text", "user_path"]
