"""What a process leaves in its ledger, who may read it, and when."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from flowforge.actors import ledger
from flowforge.actors.ledger import Ledger, Left, of_the_gone
from flowforge.errors import FlowForgeError
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.actors.ledger import Owned

DATABASE = "postgresql://here/one"
#: A process that has begun one task run, and lives on; if it is told to, with a child that holds what it has inherited.
PROCESS = """
import os, sys, time, uuid
from pathlib import Path
from flowforge.actors.ledger import Ledger

ledger, key = Ledger(Path(sys.argv[1]), "other"), (uuid.UUID(int=1), 1)
ledger.enter([key])
ledger.begin(key)
parent = os.getpid()
child = os.fork() if sys.argv[2] == "parent" else 0
if os.getpid() == parent:
    print(child, flush=True)
time.sleep(600)
"""


def own(number: int = 1) -> list[Owned]:
    """Return that many task runs, each at a token of its own."""
    return [(uuid4(), token) for token in range(1, number + 1)]


def die(book: Ledger) -> None:
    """Give up what the kernel gives up for a process that is killed."""
    book._map.close()
    os.close(book._file)
    book._file = -1


def left(where: Path) -> list[Left]:
    """Inherit; nothing is said of the order of what somebody left."""
    return [Left(one.owner, sorted(one.waiting), sorted(one.begun)) for one in of_the_gone(where)]


@contextmanager
def process(where: Path, role: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process, childless or a parent, and its child's id; both are killed in the end."""
    command = [sys.executable, "-c", PROCESS, str(where), role]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        try:
            yield parent, child
        finally:
            parent.kill()
            with suppress(ProcessLookupError):
                os.kill(child or parent.pid, signal.SIGKILL)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# What is left


def test_an_heir_learns_what_had_begun_and_what_had_not(tmp_path: Path) -> None:
    """B044: what is over is not among it."""
    book, (waiting, begun, over, never) = Ledger(tmp_path, "owner"), own(4)
    book.enter([waiting, begun, over, never])
    book.begin(begun)
    book.begin(over)
    book.leave([over, never])
    die(book)

    assert left(tmp_path) == [Left("owner", [waiting], [begun])]


def test_a_task_run_is_another_at_another_token(tmp_path: Path) -> None:
    book, (id_, _) = Ledger(tmp_path, "owner"), own()[0]
    book.enter([(id_, 1), (id_, 2)])
    book.begin((id_, 2))
    die(book)

    assert left(tmp_path) == [Left("owner", [(id_, 1)], [(id_, 2)])]


def test_it_is_inherited_once(tmp_path: Path) -> None:
    book = Ledger(tmp_path, "owner")
    book.enter(own())
    die(book)

    assert (len(left(tmp_path)), left(tmp_path), list(tmp_path.iterdir())) == (1, [], [])


def test_all_who_are_gone_are_found_and_who_is_there_is_not(tmp_path: Path) -> None:
    books = {owner: Ledger(tmp_path, owner) for owner in ("one", "two", "there")}
    for book in books.values():
        book.enter(own())
    die(books["one"])
    die(books["two"])

    found = left(tmp_path)

    assert {one.owner for one in found} == {"one", "two"}
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


# Who is gone


def test_who_is_frozen_is_not_gone_and_who_is_killed_is(tmp_path: Path) -> None:
    """B051: one that may wake up keeps what it owns until its lease ends."""
    with process(tmp_path, "childless") as (other, _):
        while_it_runs = left(tmp_path)
        other.send_signal(signal.SIGSTOP)
        while_it_is_frozen = left(tmp_path)

    assert (while_it_runs, while_it_is_frozen) == ([], [])
    assert left(tmp_path) == [Left("other", [], [(UUID(int=1), 1)])]


def test_who_has_left_a_forked_child_is_gone_with_that(tmp_path: Path) -> None:
    with process(tmp_path, "parent") as (other, _):
        other.kill()
        other.wait()
        while_the_child_lives = left(tmp_path)

    assert while_the_child_lives == []
    assert [one.owner for one in wait_for(lambda: left(tmp_path))] == ["other"]


def test_a_ledger_that_is_not_locked_yet_is_nobodys(tmp_path: Path) -> None:
    """Between the making of a file and its lock its process looks as if it were gone."""
    book = Ledger(tmp_path, "owner")
    book._path.rename(tmp_path / ".owner")
    die(book)

    assert left(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [".owner"]


# Two heirs


def test_of_two_heirs_at_once_the_second_finds_nothing(tmp_path: Path) -> None:
    """B048."""
    book = Ledger(tmp_path, "owner")
    book.enter(own())
    die(book)

    first = of_the_gone(tmp_path)
    inherited = next(first)
    second = left(tmp_path)

    assert (inherited.owner, second) == ("owner", [])
    assert list(first) == []
    assert left(tmp_path) == []


def test_an_heir_that_fails_leaves_it_to_the_next(tmp_path: Path) -> None:
    """B057: what was left is forgotten only once it has been dealt with."""
    book, owned = Ledger(tmp_path, "owner"), own()
    book.enter(owned)
    die(book)

    first = of_the_gone(tmp_path)
    next(first)
    first.close()

    assert left(tmp_path) == [Left("owner", owned, [])]


# Its limits


def test_what_does_not_fit_in_is_not_noted_until_there_is_room(tmp_path: Path) -> None:
    book, owned = Ledger(tmp_path, "owner"), own(4097)
    last = owned[-1]
    book.enter(owned)
    book.begin(last)  # as if it had never been claimed
    book.leave(owned[1:2])
    book.enter([last])
    die(book)

    assert left(tmp_path) == [Left("owner", sorted([owned[0], *owned[2:]]), [])]


def test_what_is_entered_twice_takes_one_place(tmp_path: Path) -> None:
    book, owned = Ledger(tmp_path, "owner"), own(4096)
    book.enter(owned[:1])
    book.begin(owned[0])
    book.enter(owned)
    die(book)

    assert left(tmp_path) == [Left("owner", sorted(owned[1:]), owned[:1])]


def test_who_ends_in_good_order_leaves_nothing_and_notes_nothing_more(tmp_path: Path) -> None:
    book, owned = Ledger(tmp_path, "owner"), own(2)
    book.enter(owned[:1])

    book.close()
    book.enter(owned)
    book.begin(owned[0])
    book.leave(owned)
    book.close()

    assert (left(tmp_path), list(tmp_path.iterdir())) == ([], [])


def test_two_processes_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".owner").touch()

    with pytest.raises(FileExistsError):
        Ledger(tmp_path, "owner")


# Where it is


@pytest.mark.parametrize("foreign", ["text", "empty", "directory", "link", "dangling"])
def test_what_is_no_ledger_is_left_alone_and_hides_none(tmp_path: Path, foreign: str) -> None:
    where, file = tmp_path / "ledgers", tmp_path / "file"
    where.mkdir()
    file.write_text("a text of somebody's")
    make = {
        "text": lambda path: path.write_text("not a ledger, and longer than an entry of one: that is 25 bytes"),
        "empty": lambda path: path.touch(),
        "directory": lambda path: path.mkdir(),
        "link": lambda path: path.symlink_to(file),
        "dangling": lambda path: path.symlink_to(tmp_path / "nowhere"),
    }
    make[foreign](where / "a-foreign-one")
    book, owned = Ledger(where, "owner"), own()
    book.enter(owned)
    die(book)

    assert left(where) == [Left("owner", owned, [])]
    assert [path.name for path in where.iterdir()] == ["a-foreign-one"]
    assert file.read_text() == "a text of somebody's"


def test_a_directory_that_was_cleaned_away_holds_nothing(tmp_path: Path) -> None:
    """Some systems delete in the temporary directory what nobody has touched for days."""
    where, (key,) = tmp_path / "ledgers", own()
    where.mkdir()
    book = Ledger(where, "owner")
    (where / "owner").unlink()
    where.rmdir()

    book.enter([key])
    book.begin(key)
    book.leave([key])
    book.close()

    assert left(where) == []


def test_nobody_else_may_look_into_it(temporary: Path) -> None:
    where = ledger.directory("flowforge", DATABASE)

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (where, where.parent)]
    assert modes == [0o700, 0o700]
    assert where.parent.parent == temporary
    assert ledger.directory("flowforge", DATABASE) == where


def test_each_namespace_and_each_database_has_its_own(temporary: Path) -> None:
    """An heir on another database would find nothing of what was left there, and forget it."""
    named = [("one", DATABASE), ("two", DATABASE), ("../one", DATABASE), ("one", DATABASE + "2")]

    directories = {ledger.directory(*names) for names in named}

    assert len(directories) == 4
    assert {path.parent.parent for path in directories} == {temporary}
    assert not any("here" in str(path) for path in directories)  # a URL may hold a password


@pytest.mark.parametrize("how", ["account", "link", "dangling", "file"])
def test_what_is_anothers_is_refused_with_the_remedy(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    mine, elsewhere = temporary / f"flowforge-{os.getuid()}", temporary / "elsewhere"
    if how == "account":
        monkeypatch.setattr(os, "getuid", lambda: 54321)
        mine = temporary / "flowforge-54321"
        mine.mkdir()
    elif how == "file":
        mine.touch()
    else:
        mine.symlink_to(elsewhere)
        if how == "link":
            elsewhere.mkdir()

    with pytest.raises(FlowForgeError, match=f"{mine} is another's: remove it, or set TMPDIR"):
        ledger.directory("flowforge", DATABASE)
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
