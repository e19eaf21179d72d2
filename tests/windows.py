"""A process that lacks what Windows lacks, as far as Linux can play it.

`python -m tests.windows 'raysim run ...' 'raysim resume ...'` imports all modules of raysim, then
types the commands. Modules and names that Windows has not are hidden once the libraries, which have
parts for it, are loaded; files are opened, renamed and removed by its rules. Not played: paths with
backslashes, Ray, the console.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import pkgutil
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

LIBRARIES = (
    *(
        "numpy",
        "torch",
        "ray.job_submission",
        "pyarrow.dataset",
        "scipy.stats",
        "optuna",
        "filelock",
    ),
    *(
        "torch.utils.tensorboard",
        "typer.testing",
        "sqlalchemy",
        "aiohttp",
        "requests",
        "platformdirs",
    ),
)
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios")
NAMES: dict[Any, tuple[str, ...]] = {
    os: (
        *("O_DIRECTORY", "O_NOFOLLOW", "chown", "fork", "getpgid", "getuid", "geteuid", "killpg"),
        *("mkfifo", "nice", "sched_getaffinity", "setsid", "sysconf", "uname", "wait"),
    ),
    signal: (
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP"),
        *("SIGUSR1", "SIGUSR2", "pthread_sigmask", "setitimer", "sigwait"),
    ),
    socket: ("AF_UNIX",),
}
FOLDERS = ("/proc/self", "/proc/cpuinfo", "/sys/fs/cgroup")
FORBIDDEN = frozenset('<>:"|?*')
RENAMES, REMOVALS = ("os.rename",), ("os.remove", "os.rmdir")


class Files:
    """Rules of files on Windows, as a hook of what Python does with them."""

    def __init__(self) -> None:
        self._fsync = os.fsync
        self._asking = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise what Windows would for an event of `sys.addaudithook`."""
        if self._asking or not arguments or not isinstance(arguments[0], str | os.PathLike):
            return
        paths = [Path(each) for each in arguments[: 2 if event in RENAMES else 1]]
        if any(paths[0].is_relative_to(folder) for folder in FOLDERS):
            raise FileNotFoundError(errno.ENOENT, "Windows has no such folder", str(paths[0]))
        if event == "open" and arguments[1] is None and paths[0].is_dir():  # by os.open
            raise PermissionError(errno.EACCES, "Windows opens no folder", str(paths[0]))
        if event in ("open", "os.mkdir", *RENAMES) and FORBIDDEN & {*paths[-1].name}:
            raise OSError(errno.EINVAL, "Windows has no such name", str(paths[-1]))
        if event == "os.symlink":
            raise OSError(errno.EPERM, "Windows links only for administrators", str(paths[0]))
        if event in RENAMES and paths[1].is_dir():
            raise PermissionError(errno.EACCES, "Windows renames to no folder", str(paths[1]))
        if event in (*RENAMES, *REMOVALS):
            for path in paths:
                if used := self._in_use(path.absolute()):
                    raise PermissionError(errno.EACCES, "Windows: is open", str(used))

    def _in_use(self, path: Path) -> Path | None:
        """Return a file that this process has open or mapped, of this name or below it."""
        self._asking = True
        try:
            lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
            used = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
            for link in Path("/proc/self/fd").iterdir():
                with suppress(FileNotFoundError):  # of this listing itself
                    used.add(link.readlink())
        finally:
            self._asking = False
        return next((each for each in used if each.is_relative_to(path)), None)

    def fsync(self, descriptor: int) -> None:
        """Force a file to disk, which Windows does for one that may be written."""
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Windows forces no file that is only read")
        self._fsync(descriptor)


def become_windows() -> None:
    """Hide what Windows lacks from all that is imported and done from now on."""
    for name in LIBRARIES:
        importlib.import_module(name)
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # type: ignore[misc]
    files = Files()
    os.fsync = files.fsync
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.addaudithook(files)


def main(commands: list[str]) -> None:
    """Import all of raysim, then type commands."""
    become_windows()
    import raysim
    from raysim.__main__ import main as raysim_command

    for found in pkgutil.walk_packages(raysim.__path__, "raysim."):
        importlib.import_module(found.name)
    for command in commands:
        sys.argv = shlex.split(command)
        try:
            raysim_command()
        except SystemExit as ended:
            if ended.code:
                sys.exit(f"{command}: exit code {ended.code}")


if __name__ == "__main__":
    main(sys.argv[1:])
