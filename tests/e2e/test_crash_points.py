"""
At every point around a commit, a publish, a claim and a renewal a process is killed; others finish its work, once.

The points are those of the verbs that workers and schedulers perform, so that a new verb is here by itself: it needs a
reason in `Situation` to be performed.
"""

from __future__ import annotations

import inspect
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from flowforge import client, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, RunState
from flowforge.transitions import Decision, Mark, Subject
from tests import factories
from tests.e2e import fault_workflows as workflows
from tests.e2e.conftest import events
from tests.e2e.nursery import Nursery, nursing
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from flowforge.settings import Settings

LOAD = 10  # runs of the chain for each process that is to be killed
TEST = Decision("cli:tester@here")
WORKERS = {"claim", "defer", "finish", "hand_back", "lose", "renew", "retry"}
#: What a process needs so that it has a reason for a verb.
ENVIRONMENTS = {"defer": {"FLOWFORGE_MODULES": "tests.support"}, "hand_back": {"STUCK": "1"}}
#: Verbs that are part of another's transaction, or are committed by those who call the client.
OTHERS = {"take", "skip", "guard", "start_run", "hold", "move", "rerun", "pause", "resume"}


def verbs() -> list[str]:
    """Return the verbs that a process of ours commits, which is named after them: `hand_over` commits a `take`."""
    functions = {name: vars(transitions)[name] for name in transitions.__all__}
    performed = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "connection" in inspect.signature(function).parameters
    }
    return sorted(performed - OTHERS | {"hand_over"})


def points(verb: str) -> list[str]:
    """Return the points around a verb: at each of them a process dies, in this order."""
    nearby = {"claim": ["consume.popped"], "hand_over": ["publish.taken", "publish.pushed"]}
    return [*nearby.get(verb, []), f"{verb}.before_commit", f"{verb}.after_commit"]


class Situation:
    """Runs that give workers and schedulers a reason for each of their verbs, and how each of them ends."""

    def __init__(self, fleet: Nursery) -> None:
        self.fleet, self._database = fleet, client.engine().database
        self.expected: dict[client.Run, RunState] = {}

    def prepare(self, verb: str) -> None:
        """Start the load, and what gives a process a reason to perform a verb; with no scheduler to be in the way."""
        for _ in range(LOAD):
            self.expected[workflows.chain.start()] = RunState.SUCCEEDED
        getattr(self, verb, lambda: None)()

    def renew(self) -> None:
        """A task that takes longer than a third of its lease."""
        self.expected[workflows.nap.start()] = RunState.SUCCEEDED

    def hand_back(self) -> None:
        """A task that does not end within the grace."""
        self.expected[workflows.stuck.start()] = RunState.SUCCEEDED

    def lose(self) -> None:
        """A task that a worker of this machine has begun, and was killed then."""
        self.hand_back()
        worker = self.fleet.worker(STUCK="1")
        wait_until_amid(worker)
        worker.kill()

    def expire(self) -> None:
        """A task whose owner is gone."""
        self._claim(self._single(RunState.SUCCEEDED), lease=0.01)

    def resend(self) -> None:
        """A dispatch that was published, and stands in no list."""
        self._single(RunState.SUCCEEDED)
        self._database.perform(transitions.take, "default", limit=1000, after=Mark())

    def forget(self) -> None:
        """A key that stands for its run no longer."""
        run = workflows.single.options(idempotency_key=str(uuid4())).start()
        self.expected[run] = RunState.SUCCEEDED

    def unhold(self) -> None:
        """A dispatch that was held back until a resume, which has not let it go itself."""
        self._single(RunState.SUCCEEDED)
        subject = Subject(DEFAULT_ORGANIZATION, Paused.WORKFLOW, "single")
        self._database.perform(transitions.pause, subject, TEST)
        self._database.perform(transitions.take, "default", limit=1000, after=Mark())
        self._database.perform(transitions.resume, subject, TEST)

    def cut_off(self) -> None:
        """A task that was asked to stop, and whose owner does not hear."""
        run = self._single(RunState.CANCELLED)
        self._claim(run, lease=60)
        self._database.perform(transitions.cancel, run.id, TEST)

    def give_up(self) -> None:
        """A task that nobody starts in time."""
        self.expected[workflows.unstarted.start()] = RunState.FAILED

    def cancel(self) -> None:
        """A run that is not over by its deadline."""
        self.expected[workflows.unserved.options(deadline=0.01).start()] = RunState.CANCELLED

    def _single(self, state: RunState) -> client.Run:
        run = workflows.single.start()
        self.expected[run] = state
        return run

    def _claim(self, run: client.Run, *, lease: float) -> None:
        claimed = factories.claim(self._database, factories.task_run(run.id, "only"), owner="gone:1:0", lease=lease)
        assert len(claimed) == 1


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Nursery]:
    """Processes of this test, and a table for what tasks do."""
    with nursing(replace(settings, idempotency_ttl=0.05), tmp_path) as nursery:
        client.engine().database.execute_sql(workflows.EFFECT)
        yield nursery


def rows(statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with client.engine().database.raw().cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def ended() -> Mapping[str, tuple[Any, ...]]:
    """Return each task run that has ended: its state, its token, and how often it left an effect."""
    found = rows(
        "select id::text, state, fencing_token, (select count(*) from public.effect where task_run = id)"
        "  from flowforge.task_run where finished_at is not null"
    )
    return {id_: tuple(rest) for id_, *rest in found}


def without_one_effect() -> list[tuple[Any, ...]]:
    """Return succeeded task runs whose accepted attempt left no effect, or more than one."""
    return rows(
        "select t.id from flowforge.task_run t"
        "  left join public.effect e on e.task_run = t.id and e.token = t.fencing_token"
        " where t.state = 'succeeded' group by t.id having count(e.token) <> 1"
    )


def wait_until_amid(worker: Any) -> None:
    """
    Wait until a worker is in the middle of the task that does not end before the worker does.

    Or until it is dead: on a busy machine it may have handed back before what it could not begin at once.
    """
    running = (
        "select from flowforge.task_run t join flowforge.task k on k.id = t.task_id and k.key = 'until_taken_away'"
        " where t.lease_owner like '%%:%s:%%' and t.started_at < now() - interval '0.2 s'"
    )
    wait_for(lambda: worker.poll() is not None or rows(running % worker.pid))


@pytest.mark.parametrize("verb", verbs())
def test_whoever_dies_at_a_commit_loses_nothing_and_does_nothing_twice(fleet: Nursery, verb: str) -> None:
    """B026, B027, B043, B044, B064, B083: the process is killed by SIGKILL at each point around the verb's commit."""
    situation = Situation(fleet)
    dying, other = (fleet.worker, fleet.scheduler) if verb in WORKERS else (fleet.scheduler, fleet.worker)
    other()
    for point in points(verb):
        situation.prepare(verb)
        process = dying(**ENVIRONMENTS.get(verb, {}), FLOWFORGE_CRASH_AT=point)
        if verb == "hand_back":
            wait_until_amid(process)
            if process.poll() is None:
                process.terminate()
        assert process.wait(timeout=15) == -signal.SIGKILL, f"{point} was not passed: does {verb} have a reason to?"
    before = ended()

    dying()

    for run, state in situation.expected.items():
        assert run.wait(timeout=30) is state
    assert without_one_effect() == []
    assert before.items() <= ended().items()


def test_a_rescuer_that_stands_still_amid_its_work_hinders_nobody(fleet: Nursery, tmp_path: Path) -> None:
    """B064: it holds the lock of what it rescues; others rescue the rest, and that too when the server has waited."""
    situation = Situation(fleet)
    situation.expire()
    stuck = fleet.scheduler(FLOWFORGE_PAUSE_AT=f"expire.before_commit={tmp_path}/go")
    wait_for((tmp_path / "go.reached").exists)
    situation.expire()
    held, free = situation.expected

    fleet.scheduler()
    fleet.worker()

    assert free.wait(timeout=10) is RunState.SUCCEEDED
    assert held.wait(timeout=10) is RunState.SUCCEEDED
    (tmp_path / "go").touch()
    wait_for(lambda: "duty.server_away duty=expire_leases" in fleet.log(stuck))
    assert stuck.poll() is None


def test_a_worker_that_is_stopped_amid_a_commit_holds_its_task_run_for_seconds_only(
    fleet: Nursery, tmp_path: Path
) -> None:
    """B051, B064: its transaction is ended by the server, its task run begun anew, and its own outcome refused."""
    fleet.scheduler()
    stopped = fleet.worker(FLOWFORGE_PAUSE_AT=f"finish.before_commit={tmp_path}/go")
    run = workflows.single.start()
    wait_for((tmp_path / "go.reached").exists)
    stopped.send_signal(signal.SIGSTOP)

    fleet.worker()

    assert run.wait(timeout=15) is RunState.SUCCEEDED
    (tmp_path / "go").touch()
    stopped.send_signal(signal.SIGCONT)
    wait_for(lambda: "refused" in events(run, "only"))
    assert without_one_effect() == []
