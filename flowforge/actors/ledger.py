"""
What a worker process owns, in a file that outlives it: the next process on this machine sees which attempts had begun.

A process that is killed takes its neighbours' claims with it. Those that had not begun are handed back, charged with
nothing; the leases of those that had are ended, so that they need not run out. That an owner is gone is known by its
lock on the file, which the kernel gives up with the last process that holds it: one that is only frozen keeps its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote
from uuid import UUID

from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logger = logging.getLogger(__name__)

_ENTRY = struct.Struct("=16sqb")  # task run, token, and whether it has begun
_FREE, _WAITING, _BEGUN = 0, 1, 2
_ENTRIES = 4096
_SIZE = _ENTRIES * _ENTRY.size
_UNLOCKED = "."

Owned = tuple[UUID, int]


def directory(namespace: str, database_url: str) -> Path:
    """
    Return where this account's processes of one deployment keep their ledgers; nobody else may read there.

    A database has its own: an heir on another would find nothing of what was left, and forget it. Raises
    `FlowForgeError` where another account has taken the place.
    """
    own = Path(tempfile.gettempdir()) / f"flowforge-{os.getuid()}"
    with suppress(FileExistsError):
        own.mkdir(mode=0o700)
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise FlowForgeError(f"{own} is another's: remove it, or set TMPDIR to a directory of this account's own")
    database = hashlib.sha256(database_url.encode()).hexdigest()[:16]  # the URL may hold a password
    path = own / f"{quote(namespace, safe='')}-{database}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


class Left(NamedTuple):
    """What an owner that is gone has left behind."""

    owner: str
    waiting: list[Owned]
    begun: list[Owned]


class Ledger:
    """The entries of this process. Not more than 4,096: what is owned beyond that is charged as if it had begun."""

    def __init__(self, where: Path, owner: str) -> None:
        self._path, unlocked = where / owner, where / f"{_UNLOCKED}{owner}"
        self._file = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, _SIZE)
        unlocked.rename(self._path)  # an heir never sees it without its lock
        self._map = mmap.mmap(self._file, _SIZE)
        self._free = list(range(_ENTRIES))
        self._places: dict[Owned, int] = {}

    def enter(self, owned: Iterable[Owned]) -> None:
        """Note what is about to be claimed: before it is, so that there is no moment between."""
        for key in owned:
            if self._free and key not in self._places:
                self._places[key] = self._free.pop()
                self._write(self._places[key], key, _WAITING)

    def begin(self, key: Owned) -> None:
        """Note that user code is about to begin."""
        place = self._places.get(key)
        if place is not None:
            self._write(place, key, _BEGUN)

    def leave(self, owned: Iterable[Owned]) -> None:
        """Note that these are owned no longer."""
        for key in owned:
            place = self._places.pop(key, None)
            if place is not None:
                _ENTRY.pack_into(self._map, place * _ENTRY.size, b"", 0, _FREE)
                self._free.append(place)

    def _write(self, place: int, key: Owned, word: int) -> None:
        _ENTRY.pack_into(self._map, place * _ENTRY.size, key[0].bytes, key[1], word)

    def close(self) -> None:
        """Delete the file, if it is there: nothing is owned any more, or others will learn of it by the leases."""
        self._free.clear()
        self._places.clear()
        self._path.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def of_the_gone(where: Path) -> Iterator[Left]:
    """Yield what owners that are gone have left, and forget each once whoever asked has dealt with it."""
    for path in where.glob(f"[!{_UNLOCKED}]*"):
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another heir has dealt with it, or it is no file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_size == _SIZE:  # or it is no ledger
                yield _read(path.name, os.pread(file, _SIZE, 0))
                path.unlink(missing_ok=True)
        except BlockingIOError:
            continue  # it is there, or another process sees to what it has left
        finally:
            os.close(file)


def _read(owner: str, data: bytes) -> Left:
    entries = [(UUID(bytes=id_), token, word) for id_, token, word in _ENTRY.iter_unpack(data)]
    waiting, begun = ([(id_, token) for id_, token, word in entries if word == wanted] for wanted in (_WAITING, _BEGUN))
    return Left(owner, waiting, begun)
