"""What a program may do to the machine while it is tried: an audit hook refuses the rest.

Python tells hooks what it is about to open, remove, rename and connect to. Code in C++ that writes or connects by
itself is not heard; where the folder is an overlay, the file system refuses what it writes (`overlay`).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Devices, and what the kernel shows of processes.
ALWAYS = ("/dev", "/proc")
REFUSES_WRITING = "try refuses to write {}: --allow-writes {} allows it"
REFUSES_CONNECTING = "try refuses to connect to {}: --allow-network allows it"


class Guard:
    """Refuses writing outside of some folders, and connecting to other machines unless it `may_connect`."""

    def __init__(self, folders: Sequence[str], *, may_connect: bool) -> None:
        self._folders = tuple(os.path.realpath(folder) for folder in (*folders, *ALWAYS))
        self._is_on = False
        self.refused: dict[str, None] = {}
        self._checks: dict[str, Callable[..., None]] = {
            "open": self._opened,
            "os.rename": self._renamed,
            "os.link": self._renamed,
            "os.symlink": lambda _, path, *__: self.check(path),
            **dict.fromkeys(CHANGES, self._changed),
        }
        if not may_connect:
            self._addresses = _own_addresses()
            self._checks |= {
                "socket.connect": lambda _, address: self._connected(address),
                "socket.sendto": lambda _, address: self._connected(address),
                "socket.getaddrinfo": lambda host, *_: self._looked_up(host),
                "socket.gethostbyname": self._looked_up,
            }

    def add(self, event: str, check: Callable[..., None]) -> None:
        """Have a function called with the facts of an event, too."""
        self._checks[event] = check

    def hear(self, event: str, facts: tuple[Any, ...]) -> None:
        """Handle an event of `sys.addaudithook`; raises PermissionError or ConnectionRefusedError to refuse it."""
        check = self._checks.get(event)
        if check is not None and self._is_on:
            check(*facts)

    def switch(self, *, on: bool) -> None:
        """Begin to refuse, or stop to: a hook cannot be removed."""
        self._is_on = on

    def check(self, path: Any, folder: int = -1) -> None:
        """Refuse to change a path unless it is in an allowed folder; `folder` is a file descriptor it is below."""
        if isinstance(path, int):  # a file that is open
            return
        name = os.fsdecode(path)
        if folder >= 0:
            name = str(Path(f"/proc/self/fd/{folder}", name))
        full = os.path.realpath(name)
        if any(full == allowed or full.startswith(f"{allowed}{os.sep}") for allowed in self._folders):
            return
        self._refuse(REFUSES_WRITING.format(full, Path(full).parent), PermissionError, errno.EACCES)

    def _opened(self, path: Any, _: Any, flags: int) -> None:
        if flags & WRITES:
            self.check(path)

    def _changed(self, path: Any, *facts: Any) -> None:
        folder = facts[-1] if facts and type(facts[-1]) is int else -1
        self.check(path, folder)

    def _renamed(
        self,
        source: Any,
        target: Any,
        from_folder: int = -1,
        to_folder: int = -1,
    ) -> None:
        self.check(source, from_folder)
        self.check(target, to_folder)

    def _connected(self, address: Any) -> None:
        if isinstance(address, tuple) and not self._is_local(str(address[0])):
            self._refuse(REFUSES_CONNECTING.format(address[0]), ConnectionRefusedError, errno.ECONNREFUSED)

    def _looked_up(self, host: Any) -> None:
        name = os.fsdecode(host) if host else ""
        if not self._is_local(name):
            self._refuse(REFUSES_CONNECTING.format(name), socket.gaierror, socket.EAI_NONAME)

    def _is_local(self, host: str) -> bool:
        if host in self._addresses:
            return True
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified

    def _refuse(self, sentence: str, kind: type[OSError], number: int) -> None:
        self.refused[sentence] = None
        raise kind(number, sentence)


#: Events whose first fact is the path that is changed; the last one may be the folder that it is below.
CHANGES = ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr")


def _own_addresses() -> set[str]:
    """Return this machine's names and addresses."""
    addresses = {"", "localhost", socket.gethostname()}
    with suppress(OSError):
        addresses |= {str(of_host[4][0]) for of_host in socket.getaddrinfo(socket.gethostname(), None)}
    return addresses
