"""A process ends when a thread of it is dead or silent, and for no other reason."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from flowforge.loop import Loop
from flowforge.watch import RET_DEAD, Part, Watch


class Sign:
    """A part without a thread, whose beat a test sets."""

    def __init__(self, limit: float = 10.0) -> None:
        self.beat, self.limit = 0, limit

    def parts(self) -> list[Part]:
        """Return it as it is now."""
        return [Part("sign", None, self.beat, self.limit)]


@pytest.fixture
def ended() -> threading.Thread:
    """A thread that has ended."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join(5)
    return thread


def looks(watching: Watch, number: int, since: float = 1.0) -> list[str | None]:
    """Look so many times; return the names of what was found dead."""
    found = [watching.look(since) for _ in range(number)]
    return [part and part.name for part in found]


def test_a_thread_that_has_ended_is_dead_at_the_first_look(ended: threading.Thread) -> None:
    """B117."""
    watching = Watch(lambda: [Part("lives", threading.current_thread()), Part("ended", ended)])

    assert looks(watching, 1) == ["ended"]


def test_what_has_not_beaten_for_longer_than_its_limit_is_dead() -> None:
    """B117: a thread that lives and does nothing."""
    sign = Sign(limit=3)
    watching = Watch(sign.parts)

    assert looks(watching, 5) == [None, None, None, None, "sign"]


def test_each_beat_begins_the_time_anew() -> None:
    sign = Sign(limit=3)
    watching = Watch(sign.parts)

    for _ in range(5):
        assert looks(watching, 4) == [None] * 4
        sign.beat += 1


def test_a_process_that_stood_still_blames_nobody() -> None:
    """SIGSTOP, or a machine that was moved: at the first look after it nobody has had the time to beat."""
    sign = Sign(limit=10)
    watching = Watch(sign.parts)

    assert looks(watching, 3, since=3600) == [None] * 3
    sign.beat += 1
    assert looks(watching, 1) == [None]


def test_being_alive_is_enough_for_what_has_no_limit() -> None:
    watching = Watch(lambda: [Part("lives", threading.current_thread())])

    assert looks(watching, 1000) == [None] * 1000


def test_what_comes_later_is_watched_from_then_on(ended: threading.Thread) -> None:
    """Dramatiq starts a consumer when a queue is declared."""
    parts = [Part("first", threading.current_thread())]
    watching = Watch(lambda: parts)
    assert looks(watching, 1) == [None]

    parts.append(Part("second", ended))

    assert looks(watching, 1) == ["second"]


def test_it_stops_when_told() -> None:
    told = threading.Event()
    watcher = Watch(Sign().parts).start(told)

    told.set()
    watcher.join(5)

    assert not watcher.is_alive()


def test_a_loop_beats_after_each_turn_that_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of minutes is no death."""
    monkeypatch.setattr("flowforge.loop._FIRST_PAUSE", 0.001)
    beats = set[Any]()
    went_on = threading.Event()

    def turn() -> None:
        beats.add(Part.of(looping).beat)
        if len(beats) == 3:
            went_on.set()
        raise ConnectionError

    looping = Loop("test-loop", turn)
    looping.start()

    assert went_on.wait(5)
    looping.stop(5)


# In a process of its own

_PROCESS = """
import logging, threading, time
from flowforge import watch
from flowforge.loop import Loop
logging.basicConfig(format="%(name)s %(message)s")
watch._EVERY, watch._LAST_WORDS = 0.01, 0.2
{}
loop.start()
watch.Watch(lambda: [watch.Part.of(loop, limit=0.05)]).until(threading.Event())
"""


def ended_by(body: str) -> subprocess.CompletedProcess[str]:
    """Run a process whose loop is as the body says, until it ends."""
    code = _PROCESS.format(body)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)


def test_the_log_says_which_loop_died_of_what() -> None:
    process = ended_by("def turn(): raise SystemExit('gone')\nloop = Loop('test-loop', turn)")

    assert process.returncode == RET_DEAD == 70
    died, *middle, dead = process.stderr.splitlines()
    assert died == "flowforge.loop loop.died loop=test-loop"
    assert middle[-1] == "SystemExit: gone"
    assert dead == "flowforge.watch loop.dead loop=test-loop silent_for=0"


def test_the_log_says_where_a_loop_is_stuck() -> None:
    process = ended_by("def turn(): threading.Event().wait()\nloop = Loop('test-loop', turn)")

    assert process.returncode == RET_DEAD
    assert process.stderr.startswith("flowforge.watch loop.dead loop=test-loop silent_for=0\n  File ")
    assert "in turn" in process.stderr


def test_the_process_ends_although_a_lock_of_the_log_is_held() -> None:
    """And although a thread is left that would keep it alive."""
    process = ended_by(
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "loop = Loop('test-loop', lambda: logging.getLogger().handlers[0].acquire() or threading.Event().wait())"
    )

    assert process.returncode == RET_DEAD
    assert process.stderr == ""


def test_the_process_ends_although_no_thread_starts_any_more() -> None:
    process = ended_by(
        "def turn():\n"
        "    threading.Thread.start = lambda self: threading.Event().wait()\n"
        "    raise SystemExit\n"
        "loop = Loop('test-loop', turn)"
    )

    assert process.returncode == RET_DEAD
    assert process.stderr.splitlines()[-1] == "flowforge.watch loop.dead loop=test-loop silent_for=0"


def test_a_watcher_that_dies_itself_ends_the_process_too() -> None:
    process = ended_by(
        "def parts(): raise SystemExit('no parts')\nwatch.Watch(parts).start(threading.Event()).join()\n"
    )

    assert process.returncode == RET_DEAD
    assert process.stderr.splitlines()[0] == "flowforge.watch watch.died"
    assert process.stderr.splitlines()[-1] == "SystemExit: no parts"
