"""chaos: trouble on purpose, and the verdict."""

from __future__ import annotations

import dataclasses
import logging
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from flowforge import chaos as causing
from flowforge import client, migrations
from flowforge.cli import output
from flowforge.settings import Settings

if TYPE_CHECKING:
    from flowforge.chaos.run import Verdict


def chaos(
    seconds: Annotated[float, typer.Option(min=5, help="How long trouble is made.")] = 60.0,
    task_runs: Annotated[int, typer.Option(min=100, help="Size of the load.")] = 2_000,
    workers: Annotated[int, typer.Option(min=1)] = 3,
    schedulers: Annotated[int, typer.Option(min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Equal seeds make equal trouble at equal times.")] = 1,
    logs: Annotated[Path | None, typer.Option(help="Where the logs of its processes go.")] = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="On servers of its own, which it restarts too.")] = False,
    as_json: output.AsJson = False,
) -> None:
    """
    Load a deployment while processes of its own are killed, frozen and cut off, then check every invariant.

    Only what it has started is disturbed. The database must hold a consent: `flowforge doctor --allow-chaos`.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: its processes end, and its load is cancelled
        signal.signal(number, signal.default_int_handler)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    directory = logs or Path(tempfile.mkdtemp(prefix="flowforge-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        settings, servers = _own_servers(opened) if embedded else _allowed()
        order = causing.Order(seconds, task_runs, workers, schedulers, seed, directory=directory, servers=servers)
        verdict = causing.run(settings, order)
        client.engine().database.close()
    if as_json:
        output.print_json({**vars(verdict), "order": None, "good": verdict.good})
    else:
        _print(verdict, directory)
    if not verdict.good:
        raise typer.Exit(1)


def _allowed() -> tuple[Settings, dict[str, causing.Restarts]]:
    """Return the settings of a deployment that holds its owner's consent."""
    settings = Settings.from_env().require("database_url", "redis_url")
    causing.require_consent(client.configure(settings).database)
    return settings, {}


def _own_servers(opened: ExitStack) -> tuple[Settings, dict[str, causing.Restarts]]:
    """Start servers that may be restarted, and return settings that point at them."""
    from flowforge.embedded.servers import PostgresServer, ValkeyServer  # noqa: PLC0415 - needs the extra `embedded`

    postgres, valkey = opened.enter_context(PostgresServer()), opened.enter_context(ValkeyServer())
    settings = dataclasses.replace(Settings.from_env(), database_url=postgres.url, redis_url=valkey.url)
    migrations.migrate(client.configure(settings).database)
    return settings, {"postgres": postgres, "redis": valkey}


def _print(verdict: Verdict, directory: Path) -> None:
    made = output.table("", "checked", "note")
    for rule, number in verdict.wrong.items():
        made.add_row("[green]ok[/]" if not number else "[bold red]no[/]", rule, str(number))
    output.console.print(made)
    for title, counted in (("trouble", verdict.troubles), ("became", verdict.counts)):
        told = ", ".join(f"{what} {number}" for what, number in sorted(counted.items()))
        output.console.print(Text.assemble((f"{title}: ", "bold"), told))
    for ended in verdict.unexplained:
        output.console.print(Text(f"unexplained: {ended}", style="bold red"))
    output.console.print(
        f"seed {verdict.order.seed}, {verdict.took:.0f} s, of which {verdict.calm:.1f} s until the last run had ended; "
        f"logs in {directory}"
    )
