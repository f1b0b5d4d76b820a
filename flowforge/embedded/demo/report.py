"""
Write a survey as one HTML page that needs nothing else: no script, no network, light or dark as the reader likes.

The text around the figures stands in report.html; whatever came from the tree or the run is escaped on its way there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from flowforge.embedded.demo.charts import Bar, bars, shorten, stack
from flowforge.embedded.demo.source import Function
from flowforge.embedded.demo.survey import Content, Survey, Unparsed

PACKAGES = 15
DUPLICATES = 15
KINDS = {
    "code": "code",
    "docstrings": "docstrings",
    "comments": "comments",
    "blank": "blank",
    "unparsed": "not parsed",
}
WORKERS = ("code", "comments", "docstrings", "unparsed", "violet", "blank")


@dataclass(frozen=True)
class Step:
    """A task run that was made: when it started, in seconds after the run did, how long it took, and who made it."""

    name: str
    started: float
    seconds: float
    attempt: int = 1
    worker: str = ""


def render(survey: Survey, *, title: str, took: list[Step]) -> str:
    """Write the page."""
    template = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    totals = survey.totals
    return template.substitute(
        title=escape(title),
        files=_number(totals.files),
        packages=_number(len(survey.packages)),
        size=_size(totals.bytes),
        lines=_number(totals.lines),
        functions=_number(totals.functions),
        classes=_number(totals.classes),
        composition=_composition(survey),
        package_chart=_package_chart(survey),
        package_note=_package_note(survey),
        longest=_longest(survey.longest),
        duplicates=_duplicates(survey.duplicates),
        unparsed=_unparsed(survey.unparsed),
        timeline=_timeline(sorted(took, key=lambda step: (step.started, step.name))),
    )
