"""
Write a survey as one HTML page that needs nothing else: no script, no network, light or dark as the reader likes.

The words around the figures stand in report.html. Whatever came from the tree or the run is escaped on its way there.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from flowforge.embedded.demo.charts import Bar, bars, shorten, stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.embedded.demo.figures import Content, Counts, Function, Package, Survey, Unparsed

SHOWN = 15  # packages, and groups of duplicates; how many more there are is said
KINDS = {"code": "Code", "docstrings": "Docstrings", "comments": "Comments", "blank": "Blank", "unparsed": "Not parsed"}
WORKERS = ("code", "comments", "docstrings", "unparsed", "violet", "blank")  # colours, by turns


@dataclass(frozen=True)
class Step:
    """One attempt at a task run: when it started, in seconds after the run did, and how long it took."""

    name: str
    started: float
    seconds: float
    attempt: int = 1
    worker: str = ""


def render(survey: Survey, *, title: str, took: list[Step]) -> str:
    """Write the page."""
    template = Template(files("flowforge.embedded.demo").joinpath("report.html").read_text(encoding="utf-8"))
    totals = survey.totals
    return template.substitute(
        title=escape(title),
        size=_size(totals.bytes),
        packages=_counted(len(survey.packages), "package or module", "packages and modules"),
        **{figure: f"{getattr(totals, figure):,}" for figure in ("files", "lines", "functions", "classes", "unparsed")},
        composition=_composition(totals),
        package_chart=_package_chart(survey.packages),
        longest=_rows(_function(function, survey.longest[0].lines) for function in survey.longest),
        duplicates=_duplicates(survey.duplicates),
        problems=_problems(survey.unparsed),
        time_summary=_time_summary(took),
        timeline=_timeline(sorted(took, key=lambda step: (step.started, step.name))),
    )


def _composition(totals: Counts) -> str:
    parts = [
        Bar(label, lines, f"{lines:,} lines, {lines / (totals.lines or 1):.1%}", colour=figure)
        for figure, label in KINDS.items()
        if (lines := getattr(totals, figure))
    ]
    legend = "".join(
        f'<li><span class="swatch {part.colour}"></span><strong>{part.label}</strong> {part.text}</li>'
        for part in parts
    )
    return f'{stack(parts, name="Lines by kind")}<ul class="legend">{legend}</ul>'


def _package_chart(packages: Sequence[Package]) -> str:
    rows = [Bar(package.name, package.lines, f"{package.lines:,}") for package in packages[:SHOWN]]
    if others := packages[SHOWN:]:
        lines = sum(package.lines for package in others)
        rows.append(Bar(_counted(len(others), "other", "others"), lines, f"{lines:,}", colour="blank"))
    return bars(rows, name="Lines by package")


def _function(function: Function, most: int) -> str:
    width = 100 * function.lines / most
    return (
        f"<td><code>{escape(function.name)}</code><small>{escape(function.file)}:{function.line}</small></td>"
        f'<td class="figure">{function.lines:,}</td>'
        f'<td class="bar"><svg aria-hidden="true" width="100%" height="12">'
        f'<rect class="code" width="{width:.1f}%" height="12" rx="2"/></svg></td>'
    )


def _duplicates(groups: Sequence[Content]) -> str:
    if not groups:
        return "<p>No two files hold the same bytes.</p>"
    saved = _size(sum(group.needless for group in groups))
    shown = f" The {SHOWN} that would save most:" if len(groups) > SHOWN else ""
    summary = (
        f"{_counted(len(groups), 'group', 'groups')} of equal files; to keep one of each would save {saved}.{shown}"
    )
    return f"<p>{summary}</p>{_table('#Copies|#Bytes each|#Bytes saved|Files', map(_group, groups[:SHOWN]))}"


def _group(group: Content) -> str:
    first, *others = (f"<code>{escape(file)}</code>" for file in group.files)
    figures = (len(group.files), group.bytes, group.needless)
    cells = "".join(f'<td class="figure">{figure:,}</td>' for figure in figures)
    if len(others) == 1:
        return f"{cells}<td>{first}{others[0]}</td>"
    return f"{cells}<td>{first}<details><summary>and {len(others):,} more</summary>{''.join(others)}</details></td>"


def _problems(problems: Sequence[Unparsed]) -> str:
    if not problems:
        return "<p>Every file was read and parsed.</p>"
    rows = (
        f'<td><code>{escape(problem.file)}</code></td><td class="figure">{problem.lines:,}</td>'
        f"<td>{escape(problem.reason)}</td>"
        for problem in problems
    )
    summary = "<p>Their lines are counted, but neither told apart nor searched for functions.</p>"
    return summary + _table("File|#Lines|Why", rows)


def _timeline(took: Sequence[Step]) -> str:
    workers = list(dict.fromkeys(step.worker for step in took))
    colours = {worker: WORKERS[number % len(WORKERS)] for number, worker in enumerate(workers)}
    rows = [_bar(step, colours[step.worker]) for step in took]
    return bars(rows, name="Attempts over time", unit=" s", column=True)


def _time_summary(took: Sequence[Step]) -> str:
    if not took:
        return "No attempts were recorded."
    work = sum(step.seconds for step in took)
    elapsed = max(step.started + step.seconds for step in took)
    workers = len({step.worker for step in took})
    again = sum(step.attempt > 1 for step in took)
    repeated = f" {_counted(again, 'was a repeat', 'were repeats')}." if again else ""
    return (
        f"{_counted(len(took), 'attempt', 'attempts')} on {_counted(workers, 'worker', 'workers')} did"
        f" {_duration(work)} of work in {_duration(elapsed)}: {work / (elapsed or 1):.1f} at a time.{repeated}"
    )


def _bar(step: Step, colour: str) -> Bar:
    attempt = f" · attempt {step.attempt}" if step.attempt > 1 else ""
    worker = f" · {shorten(step.worker, 16)}" if step.worker else ""
    return Bar(step.name, step.seconds, _duration(step.seconds) + worker + attempt, step.started, colour)


def _table(headings: str, rows: Iterable[str]) -> str:
    head = "".join(_heading(heading) for heading in headings.split("|"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{_rows(rows)}</tbody></table>"


def _heading(text: str) -> str:
    kind = "figure" if text.startswith("#") else "text"
    return f'<th scope="col" class="{kind}">{text.removeprefix("#")}</th>'


def _rows(rows: Iterable[str]) -> str:
    return "".join(f"<tr>{row}</tr>" for row in rows)


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _size(size: int) -> str:
    for unit, factor in (("MB", 1_000_000), ("kB", 1000)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return _counted(size, "byte", "bytes")


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
