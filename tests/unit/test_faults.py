"""Points at which a test ends or holds a process: off unless they are armed, and then loud."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from flowforge import faults
from flowforge.errors import SettingsError
from flowforge.settings import arm_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    """Leave no point armed."""
    yield
    faults.disarm()


def passed_before_it_died(word: str, number: int = 1000) -> int:
    """Pass the points `one` and `two` in a process with a crash point; return how often that was done."""
    code = (
        "from flowforge import faults\n"
        f"faults.crash_at({word!r})\n"
        f"for number in range({number}):\n"
        "    print(number, flush=True)\n"
        "    faults.point('one')\n"
        "    faults.point('two')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    passed = len(process.stdout.split())
    assert process.returncode == (0 if passed == number else -signal.SIGKILL)
    return passed


def test_a_point_that_nobody_armed_is_an_empty_function() -> None:
    assert faults.point is faults._nothing
    assert not faults.armed()
    faults.point("finish.after_commit")


@pytest.mark.parametrize(("word", "passed"), [("two", 1), ("two:#3", 3), ("two:1", 1), ("three", 1000)])
def test_a_crash_point_ends_the_process_at_the_passing_that_was_asked_for(word: str, passed: int) -> None:
    assert passed_before_it_died(word) == passed


def test_a_probability_is_one() -> None:
    due = faults._due("0.25")

    assert 0.2 < sum(due() for _ in range(10_000)) / 10_000 < 0.3  # eleven standard deviations to either side


def test_a_pause_point_holds_its_thread_until_the_file_is_there(tmp_path: Path) -> None:
    faults.pause_at(f"finish.before_commit={tmp_path}/go")
    passed = [threading.Event(), threading.Event()]

    def walk() -> None:
        faults.point("finish.after_commit")
        passed[0].set()
        faults.point("finish.before_commit")
        passed[1].set()

    thread = threading.Thread(target=walk)
    thread.start()

    assert passed[0].wait(5)
    while not (tmp_path / "go.reached").exists():
        assert thread.is_alive()
    assert not passed[1].wait(0.1)
    (tmp_path / "go").touch()
    assert passed[1].wait(5)
    thread.join(5)


def test_armed_points_are_told_loudly(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    arm_faults({"FLOWFORGE_CRASH_AT": "one:0.5, two:#2", "FLOWFORGE_PAUSE_AT": f"three={tmp_path}/go"})

    assert faults.armed()
    assert [(record.levelno, record.message.partition(":")[0]) for record in caplog.records] == [
        (logging.CRITICAL, "faults.armed crash_at=one"),
        (logging.CRITICAL, "faults.armed crash_at=two"),
        (logging.CRITICAL, "faults.armed pause_at=three"),
    ]


def test_nothing_is_armed_where_nothing_is_set(caplog: pytest.LogCaptureFixture) -> None:
    arm_faults({"FLOWFORGE_CRASH_AT": "", "DATABASE_URL": "postgresql://host/mydb"})

    assert (faults.armed(), caplog.records) == (False, [])


@pytest.mark.parametrize("word", ["one:", "one:2", "one:0", "one:-1", "one:nan", "one:#", "one:#x", "one:often"])
def test_a_crash_that_cannot_be_read_is_refused_with_the_way_to_write_it(word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        arm_faults({"FLOWFORGE_CRASH_AT": word})

    assert str(caught.value) == (
        f"FLOWFORGE_CRASH_AT={word!r}: write name, name:#number, or name:probability, as in finish.after_commit:0.1"
    )
    assert not faults.armed()


def test_a_pause_without_a_file_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(SettingsError, match=r"FLOWFORGE_PAUSE_AT='one': write name=/path/of/file"):
        arm_faults({"FLOWFORGE_PAUSE_AT": "one"})
