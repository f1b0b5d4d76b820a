"""
Each predicate of each verb, left out: some test must turn red.

`make mutants` finds the predicates in statements.sql by their form, so that a new one is tried without being listed:
on states, tokens, leases and their owners, budgets and counters, what is due, held or asked to stop; locks, their
order, and that locked rows are skipped. For each it copies the tree, with that predicate true (or that clause gone),
and runs the verb's tests until one fails. What survives is a finding, unless EQUIVALENT says why nothing can tell it.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg2

from flowforge import migrations
from flowforge.db import fetch, open_database
from flowforge.db.statements import parse_statements
from flowforge.embedded.servers import PostgresServer
from flowforge.settings import Settings
from tests.contract.test_statements import CALLS
from tests.trial import ROOT, red

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.db import Database

STATEMENTS = Path("flowforge/transitions/statements.sql")
_AT_ONCE = 3
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

_STATE = r"'\w+'|\((?:'\w+',? ?)+\)|any\([^()]*(?:\([^()]*\))?[^()]*\)|\w+\.state"
_TOKEN = r"\b\w+\.(?:fencing_)?token(?:_snapshot)?"
_NOW = r"(?:\(select flowforge\.clock\(\)\)|flowforge\.clock\(\))"
#: Kind -> how such a clause looks, and what stands in its place.
KINDS = {
    "state": (rf"\b\w+\.state(?: \|\| '')? (?:=|in|<>) (?:{_STATE})", "true"),
    "token": (rf"{_TOKEN} (?:=|<) {_TOKEN}(?: \+ 1)?|\(\w+\.task_run_id, {_TOKEN}\) in \([^()]*\)", "true"),
    "lease": (rf"\b\w+\.lease_(?:expires_at < {_NOW}|owner = %\(owner\)s(?:::text)?)", "true"),
    "budget": (r"\b\w+\.(?:failures_left >= %\(charge\)s|losses_left > 0|upstream_remaining = 0)", "true"),
    "asked": (r"\b\w+\.cancel_requested_at is (?:not )?null", "true"),
    "due": (
        r"\bo\.(?:published_at is null|available_at <= \(select flowforge\.clock\(\)\)|held\b(?= *\n))|not o\.held",
        "true",
    ),
    "as seen": (r"asked\.published_at = held\.published_at", "true"),
    "over": (r"\bk\.expires_at < (?:\(select flowforge\.clock\(\)\)|excluded\.created_at)", "true"),
    "paused": (r"flowforge\.is_paused\([^()]*\)|held\.id not in \(select task_run_id from paused\)", "false"),
    "skip locked": (r" skip locked", ""),
    "lock": (r"\n +for (?:no key update|share)(?: skip locked)?(?=\n\)|;)", ""),
    "order": (r"\n +order by \w+\.id(?=\n +for )", ""),
    "after": (r"\(select count\(\*\) from \w+\) (?:>= 0|= 1) and ", ""),
}
#: Verb -> files of its tests under tests/; what is not named here has those that are called as it is.
TESTS = {
    "start_run": ("integration/verbs/test_start_run.py", "integration/test_idempotency.py"),
    "finish": (
        *(f"integration/verbs/test_{name}.py" for name in ("finish", "finish_run", "skip", "expire", "give_up")),
        *(f"integration/verbs/test_{name}.py" for name in ("cut_off", "cancel_late")),
    ),
    "release": (
        "integration/verbs/test_retry.py",
        "integration/verbs/test_hand_back.py",
        "integration/verbs/test_lose.py",
    ),
    "claim": (
        "integration/verbs/test_claim.py",
        "integration/verbs/test_pause.py",
        "integration/verbs/test_pause_races.py",
    ),
    "take": ("integration/verbs/test_take.py", "integration/verbs/test_pause.py"),
    "resend": ("integration/verbs/test_take.py", "integration/test_outbox.py"),
    "hold": (
        "integration/verbs/test_cancel_races.py",
        "integration/test_moving.py",
        "integration/test_moving_rules.py",
        "integration/test_decisions.py",
    ),
    "move": ("integration/test_moving.py", "integration/test_moving_rules.py"),
    "pause": ("integration/verbs/test_pause.py", "integration/verbs/test_pause_races.py"),
    "resume": tuple(f"integration/verbs/test_{name}.py" for name in ("resume", "pause", "pause_races")),
    "unhold": tuple(f"integration/verbs/test_{name}.py" for name in ("resume", "pause", "pause_races")),
    "forget": ("integration/test_idempotency.py", "integration/test_duties.py"),
    "here": ("integration/test_guarding.py",),
}
#: Run last, for every verb: rules against the model, all verbs against each other, and the form of the statements.
LAST = (
    "integration/test_rules_found.py",
    "integration/test_rules.py",
    "integration/verbs/test_lock_order.py",
    "contract/test_statements.py",
)
#: (verb, kind, number) -> why no test can tell it from the original.
EQUIVALENT: dict[tuple[str, str, int], str] = {
    **{(verb, "order", 1): "it skips what is locked and waits for nobody" for verb in ("renew", "lose", "resend")},
    ("claim", "state", 3): "what is not running has no owner, by taskrun_lease_iff_running",
    ("finish", "state", 8): "who was asked to cancel is running, and ended here, or cancelled, by a CHECK",
    ("expire", "state", 2): "what is not running has no lease, by taskrun_lease_iff_running",
    (
        "move",
        "state",
        5,
    ): "`going` has asked already; every update of a run is to say which states it leaves",
    ("cancel", "state", 1): "`counted` asks again; of a run that has ended no task run is left to choose",
    ("cancel", "state", 10): "`going` has asked already; as in move",
    ("rerun", "state", 8): "`going` has asked already; as in move",
}


class Mutant(NamedTuple):
    """A statement without its `number`-th clause of a kind, and where that stands in the file."""

    verb: str
    kind: str
    number: int
    line: int
    start: int
    end: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What names it, as long as the verb stays as it is."""
        return self.verb, self.kind, self.number

    def apply(self, text: str) -> str:
        """Return the file with the clause left out."""
        return text[: self.start] + KINDS[self.kind][1] + text[self.end :]


def mutants(text: str) -> list[Mutant]:
    """Return every mutant of the file."""
    heads = [*_NAME.finditer(text)]
    found = []
    for head, end in zip(heads, [*(one.start() for one in heads[1:]), len(text)], strict=True):
        code = re.sub(r"--.*", lambda comment: " " * len(comment[0]), text[head.end() : end])
        for kind, (form, _) in KINDS.items():
            for number, at in enumerate(re.finditer(form, code), 1):
                start = head.end() + at.start()
                line = text.count("\n", 0, start) + 1
                found.append(Mutant(head[1], kind, number, line, start, head.end() + at.end()))
    return found


def tests_of(verb: str) -> list[str]:
    """Return the test files that are to tell a mutant of a verb."""
    own = TESTS.get(verb) or tuple(
        str(path.relative_to(ROOT / "tests"))
        for path in sorted((ROOT / "tests/integration/verbs").glob(f"test_{verb}*.py"))
    )
    return [f"tests/{name}" for name in (*own, *LAST) if (ROOT / "tests" / name).exists()]


@contextmanager
def scratch() -> Iterator[Database]:
    """Yield a database with the schema, on which statements can be tried."""
    with PostgresServer() as server:
        database = open_database(Settings(database_url=server.url))
        migrations.migrate(database)
        yield database
        database.close()


def valid(database: Database, mutant: Mutant, text: str) -> bool:
    """Whether the server takes the statement at all: else a red test would say nothing."""
    try:
        fetch(database.raw(), parse_statements(mutant.apply(text))[mutant.verb], CALLS[mutant.verb])
    except psycopg2.Error as error:
        _say(f"{mutant}: {error}")
        return False
    return True


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Try all, or those of the verbs that are named; return 1 if any survives that is not known to be equivalent."""
    text = (ROOT / STATEMENTS).read_text()
    chosen = [one for one in mutants(text) if not sys.argv[1:] or one.verb in sys.argv[1:]]
    with scratch() as database:
        good = [one for one in chosen if valid(database, one, text)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        verbs = sorted({one.verb for one in good})
        for verb, first in zip(verbs, pool.map(lambda verb: red(tests_of(verb)), verbs), strict=True):
            if first:
                _say(f"{verb}: {first} is red without any mutant")
                return 1
        survived = 0
        tried = pool.map(lambda one: red(tests_of(one.verb), {STATEMENTS: one.apply(text)}), good)
        for mutant, first in zip(good, tried, strict=True):
            excuse = EQUIVALENT.get(mutant.key)
            survived += first is None and excuse is None
            said = f"killed by {first}" if first else f"equivalent: {excuse}" if excuse else "SURVIVED"
            _say(f"{mutant.verb:10} {mutant.kind:11} {mutant.number:2} line {mutant.line:4}  {said}")
    _say(f"{len(good)} mutants, {survived} survived, {len(chosen) - len(good)} that the server does not take")
    return int(survived > 0 or len(good) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
