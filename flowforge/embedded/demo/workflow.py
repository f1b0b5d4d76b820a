"""The demo's workflow: list, read shares in parallel, merge, recount, check, report. Its workers import this module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowforge.client import Workflow
from flowforge.embedded.demo import survey
from flowforge.embedded.demo.figures import Share, Survey
from flowforge.errors import NonRetryable
from flowforge.workflow import Context

SHARES = 24


@dataclass(frozen=True)
class Tree:
    """A source tree."""

    directory: str


source_survey = Workflow("source-survey", Tree, description="Survey a source tree of Python files")


@source_survey.task
def list_files(directory: str) -> list[str]:
    """List the tree's Python files."""
    return survey.list_files(Path(directory))


def read_share(directory: str, files: list[str], number: int) -> Share:
    """Read one share of the files."""
    return survey.read_share(Path(directory), survey.share(files, number, SHARES))


shares = [
    source_survey.task(read_share, key=f"read_share_{number:02}", inputs={"files": list_files, "number": number})
    for number in range(SHARES)
]


@source_survey.task(inputs={"parts": shares})
def merge(parts: list[Share]) -> Survey:
    """Add the shares up."""
    return survey.merge(parts)


@source_survey.task
def recount(directory: str, context: Context) -> Survey:
    """Count everything once more, directly, in one go."""
    context.progress(0, 1, "counting again")
    return survey.recount(Path(directory))


@source_survey.task
def check(merge: Survey, recount: Survey) -> str:
    """Compare the two; a difference fails the run."""
    if differences := survey.differences(merge, recount):
        raise NonRetryable(" ".join(differences))
    return "the merged figures equal the recount"
