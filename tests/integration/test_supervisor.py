"""The supervisor keeps programs running, ends them in an orderly way, and outlives none of them."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge.embedded.supervisor import Program, Supervisor
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

#: A program that lives until told to end.
_SLEEPER = ("sleep", "1000")
#: One that refuses to end; it says `ready` when it does.
_STUBBORN = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
#: One that needs a moment to end, and says when it has.
_SLOW = ("sh", "-c", "trap 'sleep 0.3; echo done; exit' TERM; echo ready; while :; do sleep 0.1; done")
_OWNER = """
from flowforge.embedded.supervisor import Program, Supervisor
raise SystemExit(Supervisor([Program("sleeper", ["sh", "-c", "echo $$; exec sleep 1000"])]).run())
"""


class Run(threading.Thread):
    """A supervisor that runs in a thread."""

    def __init__(self, *programs: Program, grace: float = 5.0) -> None:
        super().__init__(daemon=True)
        self.output = io.StringIO()
        self.supervisor = Supervisor(programs, grace=grace, echo=self.output)
        self.code: int | None = None

    def run(self) -> None:
        """Run until stopped."""
        self.code = self.supervisor.run()

    def pid(self, name: str) -> int:
        """Return the program's process id, once it runs."""
        return wait_for(lambda: self.supervisor.running.get(name, 0))

    def stop(self) -> int | None:
        """Stop; return the exit code once all has ended."""
        self.supervisor.stop()
        self.join(20)
        return self.code


@contextmanager
def supervising(*programs: Program, grace: float = 5.0) -> Iterator[Run]:
    """Run the programs; in the end stop them, at once if need be, and see that nothing is left."""
    run = Run(*programs, grace=grace)
    run.start()
    pids = {run.pid(program.name) for program in programs}
    try:
        yield run
    finally:
        run.supervisor.stop()
        run.stop()
        wait_for(lambda: not any(map(alive, pids)))
        assert run.supervisor.running == {}


def alive(pid: int) -> bool:
    """Tell whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def executed(pid: int, name: str) -> bool:
    """Tell whether the process has become the program of that name."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


def exits(log: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log records of programs that exited."""
    return [record for record in log.records if record.getMessage().startswith("program.exited")]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Record what the supervisor logs."""
    caplog.set_level(logging.INFO, logger="flowforge.embedded")
    return caplog


def test_two_killed_programs_come_back_and_the_others_never_notice(log: pytest.LogCaptureFixture) -> None:
    """B054: one dead child stops the whole worker group."""
    names = [f"worker-{number}" for number in range(4)]

    with supervising(*(Program(name, _SLEEPER) for name in names)) as run:
        before = {name: run.pid(name) for name in names}
        for name in names[:2]:
            os.kill(before[name], signal.SIGKILL)
        wait_for(lambda: all(run.supervisor.running.get(name, 0) not in {0, before[name]} for name in names[:2]))

        assert {name: before[name] for name in names[2:]}.items() <= run.supervisor.running.items()
        assert all(alive(pid) for pid in run.supervisor.running.values())

    assert f"program.exited name=worker-0 pid={before['worker-0']} signal=9" in log.text


def test_a_program_that_exits_cleanly_is_started_again_too(log: pytest.LogCaptureFixture) -> None:
    """B054: the supervisor does not restart because the exit was clean."""
    with supervising(Program("brief", ["true"])):
        wait_for(lambda: len(exits(log)) >= 2)

    assert exits(log)[0].getMessage().endswith("code=0")


def test_the_pause_before_a_restart_doubles(log: pytest.LogCaptureFixture) -> None:
    with supervising(Program("broken", ["false"])):
        wait_for(lambda: len(exits(log)) >= 3)

    first, second, third = (record.created for record in exits(log)[:3])
    assert second - first >= 0.5
    assert third - second >= 1.0


def test_a_program_that_cannot_be_run_says_why_and_stops_nobody(log: pytest.LogCaptureFixture) -> None:
    with supervising(Program("wrong", ["/no/such/program"]), Program("right", _SLEEPER)) as run:
        wait_for(lambda: exits(log))

        assert alive(run.pid("right"))
        assert "wrong | /no/such/program: No such file or directory\n" in run.output.getvalue()
    assert exits(log)[0].getMessage().endswith("code=127")


def test_what_a_killed_program_had_started_ends_before_it_comes_back() -> None:
    parent = Program("parent", ["sh", "-c", "sleep 1000 & echo $!; wait"])

    with supervising(parent) as run:
        orphan = int(wait_for(run.output.getvalue).split()[-1])
        before = run.pid("parent")
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: run.supervisor.running.get("parent", 0) not in {0, before})

        assert not alive(orphan)


def test_an_orderly_stop_ends_with_code_0() -> None:
    with supervising(Program("sleeper", _SLEEPER)) as run:
        wait_for(lambda: executed(run.pid("sleeper"), "sleep"))

        assert run.stop() == 0


def test_a_program_has_the_grace_to_end_by_itself() -> None:
    with supervising(Program("slow", _SLOW)) as run:
        wait_for(lambda: "ready" in run.output.getvalue())

        assert run.stop() == 0
        assert run.output.getvalue().endswith("slow | done\n")


def test_who_does_not_end_within_the_grace_is_killed(log: pytest.LogCaptureFixture) -> None:
    with supervising(Program("stubborn", _STUBBORN), grace=0.2) as run:
        wait_for(lambda: "ready" in run.output.getvalue())

        assert run.stop() == 1
    assert exits(log)[0].getMessage().endswith("signal=9")


def test_a_second_request_kills_at_once() -> None:
    with supervising(Program("stubborn", _STUBBORN), grace=3600) as run:
        wait_for(lambda: "ready" in run.output.getvalue())
        run.supervisor.stop()

        assert run.stop() == 1


def test_each_line_of_output_stands_behind_its_programs_name() -> None:
    program = Program("greeter", ["sh", "-c", "echo $GREETING; echo again >&2; exec sleep 1000"], {"GREETING": "hello"})

    with supervising(program) as run:
        wait_for(lambda: run.output.getvalue() == "greeter | hello\ngreeter | again\n")


def test_a_program_does_not_ignore_a_broken_pipe_as_python_does() -> None:
    with supervising(Program("signals", ["sh", "-c", "grep SigIgn /proc/self/status; exec sleep 1000"])) as run:
        ignored = int(wait_for(run.output.getvalue).split()[-1], 16)

    assert not ignored & 1 << (signal.SIGPIPE - 1)


def test_two_programs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two programs share a name: web"):
        Supervisor([Program("web", _SLEEPER), Program("web", _SLEEPER)])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_an_orderly_way(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        pid = int(owner.stdout.readline())

        owner.send_signal(number)

        assert owner.wait(20) == 0
    assert not alive(pid)


def test_programs_go_with_a_supervisor_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        pid = int(owner.stdout.readline())
        assert alive(pid)

        owner.kill()

    wait_for(lambda: not alive(pid))
