"""doctor: settings, connections, versions, the schedulers' turns, idle queues, and the number of broken invariants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import psycopg2
import redis
import typer
from rich.text import Text

from flowforge import client, insights, migrations
from flowforge.broker import check_server, connect_redis
from flowforge.cli import output
from flowforge.errors import FlowForgeError, IncompatibleServer, TurnsMissed
from flowforge.monitor import Turns
from flowforge.scheduler.duties import JOBS
from flowforge.scheduler.publishing import PUBLISH
from flowforge.settings import Settings

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection  # noqa: N812

_OLDEST_POSTGRES = 150_000
_IDLE = 60.0  # seconds for which something may be due in a queue of which nothing runs


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    note: str


def doctor(
    as_json: output.AsJson = False,
    allow_chaos: Annotated[
        bool, typer.Option("--allow-chaos", help="Let `flowforge chaos` run on this database for an hour.")
    ] = False,
) -> None:
    """Check settings, servers and schedulers, and count broken invariants. Exit code 1 if anything is wrong."""
    if allow_chaos:
        from flowforge import chaos  # noqa: PLC0415 - only needed here

        chaos.allow(client.engine().database, client.principal())
        typer.echo("`flowforge chaos` may run on this database for an hour")
        return
    findings = [
        _look(what, look) for what, look in (("settings", _settings), ("redis", _redis), ("postgres", _postgres))
    ]
    if findings[1].ok:
        findings.append(_look("schedulers", _schedulers))
    if findings[2].ok:
        findings += [_look("migrations", _migrations), *_rows()]
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _look(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except (FlowForgeError, redis.RedisError) as error:
        return Finding(what, False, str(error).strip())


def _settings() -> str:
    settings = Settings.from_env().require("database_url", "redis_url", "modules")
    return f"modules {', '.join(settings.modules)}, lease {settings.lease:g} s, namespace {settings.namespace}"


def _redis() -> str:
    return check_server(connect_redis(Settings.from_env()))


def _postgres() -> str:
    info = client.engine().database.raw().info
    if info.server_version < _OLDEST_POSTGRES:
        raise IncompatibleServer(f"PostgreSQL {info.parameter_status('server_version')}: FlowForge needs 15 or newer")
    return f"PostgreSQL {info.parameter_status('server_version')}"


def _schedulers() -> str:
    settings = Settings.from_env()
    turns = Turns(connect_redis(settings), settings.namespace).last([PUBLISH, *(job.name for job in JOBS)])
    if late := {turn.duty: turn.age for turn in turns if turn.late and turn.age}:
        raise TurnsMissed(late)
    seen = sum(turn.age is not None for turn in turns)
    return f"{seen} of {len(turns)} duties seen, none late" if seen else "none has taken a turn yet"


def _migrations() -> str:
    database = client.engine().database
    migrations.check(database)
    return f"up to date, for FlowForge {migrations.oldest_release(database)} or newer"


def _rows() -> list[Finding]:
    """Look at what the database holds; if that fails, it is the invariants that nobody has counted."""
    database = client.engine().database
    try:
        with database.limited(math.inf):
            connection = database.raw()
            return [_queues(connection), _refused(connection), *_invariants(connection)]
    except psycopg2.Error as error:
        return [Finding("invariants", False, str(error).strip())]


def _queues(connection: Connection) -> Finding:
    if not (idle := insights.idle_queues(connection, _IDLE)):
        return Finding("queues", True, f"nothing has been due for {_IDLE:.0f} s in vain")
    told = [f"nothing of queue {one.name!r} runs, and {one.due} are due, for {one.age:.0f} s at most" for one in idle]
    return Finding("queues", False, "; ".join(told) + ": start a worker that serves it, and a scheduler")


def _refused(connection: Connection) -> Finding:
    refused = insights.refused(connection)
    last = f", the last at {refused.last}" if refused.last else ""
    return Finding("refused completions", True, f"{refused.number}{last}")


def _invariants(connection: Connection) -> list[Finding]:
    broken = insights.broken_invariants(connection)
    return [Finding(rule, count == 0, str(count)) for rule, count in broken.items()]


def _print(findings: list[Finding]) -> None:
    made = output.table("", "checked", "note")
    for finding in findings:
        made.add_row("[green]ok[/]" if finding.ok else "[bold red]no[/]", finding.what, Text(finding.note))
    output.console.print(made)
