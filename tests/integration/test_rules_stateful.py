"""Any graphs, and anything done to their runs, late, again and at once: verbs and model agree at every step."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowforge import insights, models
from flowforge.db import load_statements
from tests import factories
from tests.factories import Node
from tests.integration import facts
from tests.integration.acts import HOUR, QUEUES, Acts
from tests.integration.clients import Client, waits
from tests.integration.test_rules import graphs
from tests.model import ModelRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.db import Database
    from tests.integration.acts import Act
    from tests.model import Rule

DATA = st.data()
CLIENTS = st.integers(0, 1)
SPANS = st.sampled_from([None, 2.5])
MOSTLY = st.sampled_from([True, True, True, False])
OF_WORKERS = ["finish", "finish", "retry", "claim", "hand_back", "renew", "defer", "lose", "guard"]
OF_SCHEDULERS = ["expire", "give_up", "cut_off", "cancel_overdue", "resend", "unhold"]
OF_PEOPLE = ["rerun", "cancel_tasks", "cancel"]
#: Those that wait for whoever has locked a row: the others pass it over, or read what is paused without a lock.
LOCKING_OF_WORKERS = [*["finish"] * 3, "claim", "retry", "hand_back", "defer", "guard"]
LOCKING = [*LOCKING_OF_WORKERS, "give_up", "cut_off", "cancel", "cancel_tasks", "rerun"]
MOVE = load_statements("flowforge.testing")["move"]


class Machine(RuleBasedStateMachine):
    """Up to two runs, two clients, and a clock that is moved."""

    def __init__(self, database: Database, clients: list[Client]) -> None:
        super().__init__()
        self.database, self.clients, self.acts, self.ahead = database, clients, Acts(), 0.0
        self.pass_time(0)
        self.begin = self.database.execute_sql("select flowforge.clock()").fetchone()[0]

    def teardown(self) -> None:
        for model in (models.WorkflowRun, models.Workflow, models.Pause):
            model.delete().execute()

    def do(self, act: Act, client: int = 0) -> None:
        """Perform an act; the model answers the same."""
        self.agree(act, self.clients[client].perform(act.verb))

    def agree(self, act: Act, answer: Any) -> None:
        assert act.model() == act.told(answer)
        act.keep(answer)

    def pass_time(self, seconds: float) -> None:
        """Move the database's clock; unlike `flowforge.testing`'s clock, leases that are over then are still there."""
        self.ahead += seconds
        with self.database.cursor() as cursor:
            cursor.execute(MOVE, {"microseconds": round(self.ahead * 1_000_000)})

    def pass_hours(self, number: int) -> None:
        self.acts.world.hour += number
        self.pass_time(number * HOUR)

    @invariant()
    def tables_and_model_agree(self) -> None:
        told = facts.stored(self.database.raw(), self.acts.runs, self.begin)
        assert {id_: run.facts() for id_, run in self.acts.runs.items()} == told
        assert self.acts.world.paused == {(one.kind, one.subject) for one in models.Pause.select()}
        assert not any(insights.broken_invariants(self.database.raw()).values())

    # Starts, and time

    @initialize(tasks=graphs(8, budgets=True), span=SPANS)
    def start_the_first(self, tasks: dict[str, Rule], span: float | None) -> None:
        self.start(tasks, span)
        self.publish(0)

    @precondition(lambda self: len(self.acts.runs) < 2)
    @rule(tasks=graphs(8, budgets=True), span=SPANS, data=DATA, client=CLIENTS)
    def another_starts(self, tasks: dict[str, Rule], span: float | None, data: st.DataObject, client: int) -> None:
        """Perhaps it is cancelled before it has begun."""
        self.start(tasks, span)
        if data.draw(st.booleans(), label="decide"):
            self.act(data, client, OF_PEOPLE)

    def start(self, tasks: dict[str, Rule], span: float | None) -> None:
        workflow = factories.make_workflow({key: node(one) for key, one in tasks.items()})
        run_id = factories.start(self.database, workflow, deadline=span and span * HOUR)
        self.acts.add(run_id, ModelRun(tasks, world=self.acts.world, name=str(run_id), span=span))

    # What is done: before each, what is due is published, and mostly claimed, so that there is something to be done

    def let_work_begin(self, data: st.DataObject, client: int) -> None:
        self.publish(1 - client)
        if data.draw(MOSTLY, label="claim"):
            self.claim_all(data, client)

    def publish(self, client: int) -> None:
        for queue in QUEUES:
            self.do(self.acts.take(queue), client)

    def claim_all(self, data: st.DataObject, client: int) -> None:
        if fresh := self.acts.fresh():
            self.do(self.acts.claim(data, fresh), client)

    def act(self, data: st.DataObject, client: int, names: list[str]) -> None:
        for _ in range(data.draw(st.integers(1, 3), label="acts")):
            self.do(self.acts.draw(data, names), client)

    @rule(data=DATA)
    def one_worker_acts(self, data: st.DataObject) -> None:
        self.let_work_begin(data, 0)
        self.act(data, 0, OF_WORKERS)

    @rule(data=DATA)
    def the_other_worker_acts(self, data: st.DataObject) -> None:
        self.let_work_begin(data, 1)
        self.act(data, 1, OF_WORKERS)

    @rule(data=DATA, client=CLIENTS)
    def somebody_decides(self, data: st.DataObject, client: int) -> None:
        if data.draw(st.booleans(), label="begin"):
            self.let_work_begin(data, 1 - client)
        self.act(data, client, OF_PEOPLE)

    @rule(data=DATA, client=CLIENTS, number=st.sampled_from([0, 1, 3]))
    def hours_pass_and_a_scheduler_acts(self, data: st.DataObject, client: int, number: int) -> None:
        """It finds what is overdue, and does something about it, or about what it had found before."""
        self.let_work_begin(data, 1 - client)
        self.pass_hours(number)
        for look in self.acts.looks():
            self.do(look, client)
        self.act(data, client, OF_SCHEDULERS)
        self.pass_time(2)  # the longest wait after a second loss is a second

    @rule(data=DATA, client=CLIENTS)
    def what_waits_is_paused(self, data: st.DataObject, client: int) -> None:
        self.publish(client)
        self.do(self.acts.pause(data), client)
        self.claim_all(data, 1 - client)
        if data.draw(st.booleans(), label="resume"):
            self.act(data, client, ["resume", "unhold"])

    @rule(data=DATA, client=CLIENTS, commit=MOSTLY, worker_first=st.booleans())
    def two_act_at_once(self, data: st.DataObject, client: int, *, commit: bool, worker_first: bool) -> None:
        """The second acts while the first has not committed: where it must wait, it comes after."""
        self.let_work_begin(data, client)
        first, second = self.acts.draw(data, LOCKING_OF_WORKERS), self.acts.draw(data, LOCKING)
        if not first.releases.isdisjoint(second.releases):
            return  # the second would not see in the events that the first was the same release, and tell a refusal
        if not worker_first:
            first, second = second, first
        one, other = self.clients[client], self.clients[1 - client]
        with one.held_open(first.verb, commit=commit) as answer:
            call = other.begin(second.verb)
            waits(self.database.raw(), other, call)
        if commit:
            self.agree(first, answer)
        self.agree(second, call.result(30))

    @rule(data=DATA)
    def every_run_comes_to_its_end(self, data: st.DataObject) -> None:
        """Whatever was done before, no run is stuck."""
        while self.acts.world.paused:
            self.do(self.acts.resume(data))
        for _ in self.acts.where:
            if self.acts.unfinished():
                self.let_all_work(data)
        assert self.acts.unfinished() == []

    def let_all_work(self, data: st.DataObject) -> None:
        self.do(self.acts.expire(data))
        self.do(self.acts.unhold(data))
        self.pass_hours(3)
        self.publish(0)
        self.claim_all(data, 1)
        if live := self.acts.live():
            self.do(self.acts.finish(data, live))


def node(one: Rule) -> Node:
    """Return the task of a rule."""
    start_by = None if one.start_by is None else timedelta(hours=one.start_by)
    limits = {"attempts": one.attempts, "lost": one.lost, "start_by": start_by, "queue": one.queue}
    return Node(one.upstream, {"when": one.when, "required": one.required, **limits})


@pytest.fixture
def clients(database_url: str) -> Iterator[list[Client]]:
    """Two clients of this test's database."""
    clients = [Client(database_url), Client(database_url)]
    yield clients
    for client in clients:
        client.close()


def check(database: Database, clients: list[Client], *, examples: int) -> None:
    """Try so many histories."""
    options = settings(Machine.TestCase.settings, max_examples=examples, stateful_step_count=40, database=None)
    run_state_machine_as_test(partial(Machine, database, clients), settings=options)


def test_the_verbs_agree_with_the_model(
    database: Database, clients: list[Client], caplog: pytest.LogCaptureFixture
) -> None:
    """B044, B045, B047, B051, B058, B065, B066, B069, B070, B072, B073, B074, B077, B079, B083, B084."""
    check(database, clients, examples=30)

    assert "db.deadlock" not in caplog.text


@pytest.mark.soak
def test_the_verbs_agree_with_the_model_for_long(
    database: Database, clients: list[Client], caplog: pytest.LogCaptureFixture
) -> None:
    """The same, forty times as many."""
    check(database, clients, examples=1200)

    assert "db.deadlock" not in caplog.text
