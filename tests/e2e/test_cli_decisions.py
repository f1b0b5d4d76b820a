"""What people decide on the command line, and who reads of it: words, exit codes, JSON."""

from __future__ import annotations

import getpass
import json
import os
import re
import runpy
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from flowforge import chaos, client, insights, transitions
from flowforge.models import DEFAULT_ORGANIZATION, AuditLog
from flowforge.states import RunState, TaskState
from flowforge.tenancy import audit
from flowforge.testing.clock import Clock
from tests import factories
from tests.e2e import nursery, workflows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.e2e.conftest import Fleet

ME = f"cli:{getpass.getuser()}@{socket.gethostname()}"
NOBODY = "00000000-0000-0000-0000-000000000000"


class Command:
    """The command line, on this test's database, in a process of its own each time."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self._environment = {**environment, "COLUMNS": "250"}
        self._words = directory / "out", directory / "err"

    def __call__(self, *words: str) -> tuple[int | None, str, str]:
        """Return the exit code, and what was said on stdout and on stderr, each without its last line's end."""
        process = nursery._context.Process(target=say, args=(words, self._environment, *map(str, self._words)))
        process.start()
        process.join(60)
        out, err = (file.read_text().rstrip() for file in self._words)
        return process.exitcode, out, err

    def json(self, *words: str) -> Any:
        """Return what it prints as JSON; it must end well."""
        code, out, err = self(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


def say(words: Sequence[str], environment: dict[str, str], out: str, err: str) -> None:
    """Be `flowforge` with these words."""
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.update(environment)
    sys.argv = ["flowforge", *words]
    runpy.run_module("flowforge", run_name="__main__")


@pytest.fixture
def flowforge(fleet: Fleet, tmp_path: Path) -> Command:
    return Command(fleet.environment(), tmp_path)


@pytest.fixture
def run(flowforge: Command) -> client.Run:  # noqa: ARG001 - it makes the client's database this test's
    """A run that nobody carries out: of its four tasks `count` and `square` are ready."""
    return workflows.numbers.start(n=4)


def begin(run: client.Run, key: str, state: TaskState | None = None) -> None:
    """Have a worker that is nowhere claim a task run, and end it if a state is given."""
    database = client.engine().database
    (claimed,) = factories.claim(database, factories.task_run(run.id, key), lease=600)
    if state:
        database.perform(transitions.finish, [factories.outcome(claimed, state)])


def states(run: client.Run) -> dict[str, str]:
    return {task.key: task.state for task in run.tasks()}


def lines(text: str) -> list[str]:
    """Return the lines with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines()]


# runs


def test_runs_are_cancelled_and_who_is_refused_hinders_no_other(flowforge: Command, run: client.Run) -> None:
    failed = workflows.many.start(n=1)
    begin(failed, "one", TaskState.FAILED)

    code, out, err = flowforge("runs", "cancel", str(failed.id), str(run.id)[:8], "--reason", "wrong day")
    again = flowforge("runs", "cancel", str(run.id))

    assert (code, out) == (1, f"{run.id} cancelled")
    assert err == f"{failed.id}: run {failed.id} has failed: what has ended cannot be cancelled"
    assert again == (0, f"{run.id} cancelled", "")
    assert set(states(run).values()) == {"cancelled"}
    (asked,) = [event.detail for event in run.events() if event.kind == "cancel_requested"]
    assert asked == {"by": ME, "reason": "wrong day"}


def test_running_code_is_said_to_be_told(flowforge: Command, run: client.Run) -> None:
    begin(run, "count")

    one = flowforge("runs", "cancel", str(run.id), "--task", "count", "--task", "square", "--reason", "wrong")
    whole = flowforge("runs", "cancel", str(run.id), "--now")
    listed = flowforge("runs", "list")[1]

    assert one == (0, f"{run.id} count running: its code was told to stop, square cancelled", "")
    assert whole == (0, f"{run.id} running: its code was told to stop", "")
    assert f"cancel asked for by {ME}" in lines(listed)[1]
    assert states(run) == {"count": "running", "double": "cancelled", "total": "cancelled", "square": "cancelled"}


WRONG = {
    "runs cancel {run} --task cuont": ("task 'cuont' of run {run} is not there", 1),
    "runs cancel {run} --task count --now": ("it is for whole runs: leave --task out", 2),
    f"runs cancel {NOBODY}": (f"no run's id begins with '{NOBODY}'", 1),
    "runs rerun {run}": ("run {run} is pending: only a run that has ended can be rerun", 1),
    "runs cancel": ("Missing argument", 2),
    "start numbers --timeout 5": ("it is for who waits: add --wait", 2),
    "workflows pause nubmers": ("there is no workflow 'nubmers' (did you mean 'numbers'?)", 1),
    "workflows resume nubmers": ("there is no workflow 'nubmers' (did you mean 'numbers'?)", 1),
    "queues pause defualt": ("there is no queue 'defualt' (did you mean 'default'?)", 1),
}


def test_what_cannot_be_done_is_said_and_nothing_is_changed(flowforge: Command, run: client.Run) -> None:
    before = run.events()

    answers = {words: flowforge(*words.format(run=run.id).split()) for words in WRONG}

    for words, (said, code) in WRONG.items():
        assert said.format(run=run.id) in " ".join(answers[words][2].split())
        assert (words, answers[words][:2]) == (words, (code, ""))
    assert run.events() == before
    assert AuditLog.select().count() == 0
    assert [one.id for one in insights.list_runs(DEFAULT_ORGANIZATION)] == [run.id]


def test_a_run_is_carried_out_again_from_what_failed_or_from_a_task(flowforge: Command, run: client.Run) -> None:
    begin(run, "square", TaskState.SUCCEEDED)
    begin(run, "count", TaskState.FAILED)
    ended = run.state

    failed = flowforge("runs", "rerun", str(run.id)[:8], "--reason", "it was down")
    run.cancel()
    named = flowforge("runs", "rerun", str(run.id), "--task", "square")
    unwanted = flowforge("runs", "rerun", str(run.id), "--task", "double")

    assert ended is RunState.FAILED
    assert failed == (0, f"{run.id} due again: count, double, total", "")
    assert named == (0, f"{run.id} due again: square", "")
    assert (unwanted[0], unwanted[1]) == (1, "")
    assert f"run {run.id} is running: only a run that has ended can be rerun" in unwanted[2]


def test_a_paused_run_shows_by_whom_and_why(flowforge: Command, run: client.Run) -> None:
    ended = workflows.many.start(n=1)
    ended.cancel()
    words = [
        flowforge("runs", command, str(run.id), *more)
        for command, more in (("pause", ["--reason", "audit [1]"]), ("pause", []), ("resume", []), ("resume", []))
    ]
    refused = flowforge("runs", "pause", str(ended.id))
    flowforge("runs", "pause", str(run.id), "--reason", "audit [1]")

    listed, shown = flowforge("runs", "list")[1], flowforge("runs", "show", str(run.id))[1]

    said = ["paused", "was paused already", "resumed", "was not paused"]
    assert words == [(0, f"{run.id} {word}", "") for word in said]
    assert refused == (1, "", f"{ended.id}: run {ended.id} has ended: there is nothing left to pause")
    for text in (listed, shown):
        assert f"run paused by {ME}: audit [1]" in text
    assert [row["paused"][0]["reason"] for row in flowforge.json("runs", "list") if row["paused"]] == ["audit [1]"]


def test_the_history_of_a_run_is_told_in_order(flowforge: Command, run: client.Run) -> None:
    begin(run, "count", TaskState.SUCCEEDED)
    run.cancel(reason="late", by="me")

    code, out, _ = flowforge("runs", "events", str(run.id)[:8])
    rows = flowforge.json("runs", "events", str(run.id))

    told = [(event.task, event.kind) for event in run.events()]
    assert [(row["task"], row["kind"]) for row in rows] == told
    assert code == 0
    table = lines(out)
    assert table[0] == "when task event attempt note"
    assert len(table) == 1 + len(told)
    assert any(re.match(r"\d\d:\d\d:\d\d\.\d{3} \(run\) created$", line) for line in table)
    assert any(re.match(r"\S+ count claimed 1 owner: worker-1$", line) for line in table)
    assert any(re.match(r"\S+ \(run\) cancel_requested by: me, reason: late$", line) for line in table)


# workflows and queues


@pytest.mark.parametrize(("noun", "name"), [("workflow", "numbers"), ("queue", "default")])
@pytest.mark.usefixtures("run")
def test_workflows_and_queues_are_paused_and_listed(flowforge: Command, noun: str, name: str) -> None:
    nouns = f"{noun}s"

    words = [flowforge(nouns, "pause", name, *more) for more in (["--reason", "month end [1]"], [])]
    table, (row,) = lines(flowforge(nouns, "list")[1]), [one for one in flowforge.json(nouns, "list") if one["paused"]]
    words += [flowforge(nouns, "resume", name) for _ in range(2)]

    said = ["is paused", "was paused already", "is dispatched again", "was not paused"]
    assert words == [(0, f"{noun} {name} {word}", "") for word in said]
    assert [line.split()[0] for line in table if line.endswith(f"{noun} paused by {ME}: month end [1]")] == [name]
    assert row["name"] == name
    (pause,) = row["paused"]
    assert [pause[field] for field in ("kind", "subject", "paused_by", "reason")] == [noun, name, ME, "month end [1]"]


def test_listings_count(flowforge: Command, run: client.Run) -> None:
    begin(run, "count")

    tables = [lines(flowforge(nouns, "list")[1]) for nouns in ("workflows", "queues")]
    (numbers,), (default,) = (
        [row for row in flowforge.json(nouns, "list") if row["name"] == name]
        for nouns, name in (("workflows", "numbers"), ("queues", "default"))
    )

    assert tables[0][0] == "workflow current deployed unfinished note"
    assert any(re.match(r"numbers none never 1$", line) for line in tables[0])
    assert tables[1][0] == "queue due oldest delayed held running note"
    assert any(re.match(r"default 1 \S+ m?s 0 0 1$", line) for line in tables[1])
    assert (numbers["version"], numbers["unfinished"]) == (None, 1)
    assert (default["due"], default["delayed"], default["held"], default["running"]) == (1, 0, 0, 1)


# The audit log


def test_the_audit_log_says_who_did_what_and_why(flowforge: Command, run: client.Run) -> None:
    flowforge("deploy")
    run.pause(reason="wait", by="somebody")
    run.cancel(reason="[red]wrong[/]", by="me")
    run.rerun(by="me")

    table = lines(flowforge("audit", "--limit", "100")[1])
    of_run = flowforge.json("audit", "--subject", str(run.id))
    last = flowforge.json("audit", "--limit", "1")

    assert table[0] == "when who did to note"
    assert any(re.search(rf"ago me run\.cancel {run.id} now: False, reason: \[red\]wrong\[/\]$", row) for row in table)
    assert any(re.search(rf"ago {ME} workflow\.deploy numbers ", row) for row in table)
    assert [(row["principal"], row["action"]) for row in of_run] == [
        ("me", "run.rerun"), ("me", "run.cancel"), ("somebody", "run.pause"),
    ]  # fmt: skip
    assert of_run[0]["detail"] == {"tasks": ["count", "double", "total", "square"], "reason": ""}
    assert last == of_run[:1]


# start --wait


def test_who_waits_is_told_first_how_to_follow_and_at_last_that_the_time_is_over(flowforge: Command) -> None:
    flowforge("deploy")

    code, out, err = flowforge("start", "numbers", "--wait", "--timeout", "0.5")

    first, last = err.splitlines()
    id_ = first.split()[0]
    assert first == f"{id_} started: `flowforge runs show {id_} --watch` follows it"
    assert last.startswith(f"error run {id_} is still pending after 0.5 s: task 'count' is ready")
    assert (code, out) == (1, "")
    assert flowforge.json("runs", "show", id_)["run"]["state"] == "pending"  # it goes on


# Chaos


def test_chaos_needs_a_consent_that_is_not_an_hour_old(flowforge: Command, fleet: Fleet) -> None:
    database, words = client.configure(fleet.settings).database, ("chaos", "--seconds", "5", "--task-runs", "100")
    name, clock = database.raw().info.dbname, Clock(database, lambda: None)
    remedy = "`flowforge doctor --allow-chaos` gives one for an hour"

    without = flowforge(*words)
    given = flowforge("doctor", "--allow-chaos")
    clock.move(timedelta(minutes=59))
    chaos.require_consent(database)
    clock.move(timedelta(minutes=2))
    late = flowforge(*words)

    assert without == (1, "", f"error database {name!r} holds no consent: {remedy}")
    assert given == (0, "`flowforge chaos` may run on this database for an hour", "")
    assert late == (1, "", f"error database {name!r} holds a consent that is 61 minutes old: {remedy}")
    (row,) = audit.entries(DEFAULT_ORGANIZATION, subject=name)
    assert (row.principal, row.action) == (ME, "chaos.allow")
