"""Network file systems, on which SQLite's locks are not safe."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    ["9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"]
)
"""Types of file systems that several machines mount, besides `fuse.sshfs` and similar ones."""


def is_on_network(folder: Path) -> bool:
    """Return whether a folder is on a network file system; False if Linux does not tell.

    Source: proc_pid_mountinfo(5): the fifth field is the mount point, the first after "-" the type.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    resolved = folder.resolve()
    kinds = {}  # a later mount hides an earlier one of the same place
    for line in lines:
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        if resolved.is_relative_to(place):
            kinds[place] = after.split()[0]
    kind = kinds[max(kinds, key=len)] if kinds else ""
    return kind in NETWORK or kind.startswith("fuse.")
