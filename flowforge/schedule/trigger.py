"""A trigger: a rule with all that is said of how it starts runs of a workflow."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from flowforge.durations import Duration, seconds
from flowforge.errors import DefinitionError
from flowforge.once import once
from flowforge.schedule.rules import aware
from flowforge.schedule.stored import Rule, store
from flowforge.schedule.zones import zone
from flowforge.states import Overlap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.schedule.slots import SlotValue

CatchUp = Literal["none", "latest"] | int

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_INSTANT = timedelta(microseconds=1)
_MOST = 10_000  # slots that are caught up with, and failures that are counted


@dataclass(frozen=True)
class Trigger:
    """
    A rule that starts runs of a workflow, by name: of its current version, or of the one that `version` says.

    No slot lies before `start_at` or after `end_at`. `jitter` delays each start by a part of that duration, which is
    the same in every process; it never moves the slot. Of slots that were missed, `catch_up` makes up for none, for the
    latest, or for as many of the latest as a number says. `overlap` says what becomes of a slot while the run of an
    earlier one goes on. After `pause_after` failed runs in a row it is paused. Raises `DefinitionError`.
    """

    slug: str
    workflow: str
    rule: Rule
    parameters: Mapping[str, Any] = field(default_factory=dict)
    slot_parameters: Mapping[str, SlotValue] = field(default_factory=dict)
    version: int | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: Duration = 0
    catch_up: CatchUp = "latest"
    overlap: Overlap | str = Overlap.ALLOW
    pause_after: int | None = None

    def __post_init__(self) -> None:
        """Check each option, and keep it in the form in which it is stored."""
        what = f"trigger {self.slug!r}"
        if not isinstance(self.slug, str) or not _SLUG.fullmatch(self.slug):
            raise DefinitionError(f"{what}: use 1-63 of a-z, 0-9, '_', '-' as its slug, a letter or digit first")
        for name in ("start_at", "end_at"):
            if (moment := getattr(self, name)) is not None:
                object.__setattr__(self, name, aware(moment, f"{what}: {name}"))
        if self.start_at and self.end_at and self.start_at > self.end_at:
            raise DefinitionError(f"{what}: it ends at {self.end_at}, before it starts at {self.start_at}")
        object.__setattr__(self, "jitter", seconds(self.jitter, f"{what}: jitter"))
        object.__setattr__(self, "catch_up", _catch_up(self.catch_up, what))
        object.__setattr__(self, "overlap", _overlap(self.overlap, what))
        for name in ("pause_after", "version"):
            if (number := getattr(self, name)) is not None and not _counts(number, 1):
                raise DefinitionError(f"{what}: {name}={number!r} must be a whole number from 1 to {_MOST}")

    @property
    def timezone(self) -> str:
        """The zone by whose clocks slots are shown."""
        return self.rule.timezone

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after an instant, between `start_at` and `end_at`."""
        if self.start_at and moment < self.start_at:
            moment = self.start_at - _INSTANT
        slot = self.rule.after(moment)
        return None if slot is None or (self.end_at and slot > self.end_at) else slot

    def delay(self, slot: datetime) -> timedelta:
        """Return how long after its slot a run is started: a part of `jitter`, the same wherever it is asked for."""
        drawn = hashlib.sha256(f"{self.slug}/{slot.isoformat()}".encode()).digest()
        return timedelta(seconds=float(self.jitter) * int.from_bytes(drawn[:6]) / 2**48)  # type: ignore[arg-type]

    def parameters_at(self, slot: datetime) -> dict[str, Any]:
        """Return a run's parameters for a slot, as JSON data."""
        place = zone(self.timezone)
        moving = {name: value.json_at(slot, place) for name, value in self.slot_parameters.items()}
        return {**self.parameters, **moving}

    @once
    def revision(self) -> str:
        """SHA-256 over its canonical form: equal for two triggers that do the same."""
        rule = store(self.rule)
        form = {
            "slug": self.slug,
            "workflow": self.workflow,
            "version": self.version,
            "rule": [rule.kind, rule.data, rule.timezone],
            "bounds": [moment and moment.isoformat() for moment in (self.start_at, self.end_at)],
            "jitter": self.jitter,
            "catch_up": self.catch_up,
            "overlap": self.overlap,
            "pause_after": self.pause_after,
            "parameters": dict(self.parameters),
            "slot_parameters": {name: value.data() for name, value in self.slot_parameters.items()},
        }
        return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()


def _counts(number: object, least: int) -> bool:
    return type(number) is int and least <= number <= _MOST


def _catch_up(given: CatchUp, what: str) -> int:
    """Return how many missed slots are made up for."""
    number = {"none": 0, "latest": 1}.get(given, given) if isinstance(given, str) else given
    if not _counts(number, 0):
        raise DefinitionError(f"{what}: catch_up={given!r} must be 'none', 'latest', or a number up to {_MOST}")
    return number  # type: ignore[return-value]


def _overlap(given: Overlap | str, what: str) -> Overlap:
    try:
        return Overlap(given)
    except ValueError:
        raise DefinitionError(f"{what}: overlap={given!r} must be one of {', '.join(Overlap)}") from None
