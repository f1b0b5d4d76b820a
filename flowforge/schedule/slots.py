"""The slot as a parameter: stored as data, and known when a trigger fires."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from flowforge.durations import seconds
from flowforge.errors import DefinitionError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_DAY, _MOST = timedelta(days=1), timedelta(days=3660)
#: What a parameter may be, and as what it gets the slot.
_AS = {date: "date", datetime: "datetime", str: "text", Any: "text"}


@dataclass(frozen=True)
class SlotValue:
    """
    The slot that fires a run, in the trigger's time zone: `SLOT`, or `SLOT - timedelta(days=1)`.

    Days are the calendar's, so that the time of day stays; what is less than a day is time that passes. A parameter
    annotated `date` gets the local date, one annotated `datetime` or `str` the time with its offset.
    """

    shift: timedelta = timedelta()
    #: `date`, `datetime` or `text`; None until it is known which parameter takes it.
    form: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could leave the calendar."""
        if abs(self.shift) > _MOST:
            raise DefinitionError(f"SLOT moved by {self.shift}: it may be moved by {_MOST.days} days")

    def __add__(self, duration: timedelta) -> SlotValue:
        """Return a later one."""
        return replace(self, shift=self.shift + duration)

    def __sub__(self, duration: timedelta) -> SlotValue:
        """Return an earlier one."""
        return replace(self, shift=self.shift - duration)

    def taken_by(self, annotation: Any, name: str) -> SlotValue:
        """Return it in the form that a parameter needs. Raises `DefinitionError` for one that can take no slot."""
        for kind, form in _AS.items():
            if kind in _members(annotation):
                return replace(self, form=form)
        raise DefinitionError(
            f"parameter {name!r} is {annotation}, which takes no slot: annotate it date, datetime or str"
        )

    def at(self, slot: datetime, place: ZoneInfo) -> date | str:
        """Return the value for a slot: a date, an aware datetime of the zone, or that as a text in ISO 8601."""
        shifted = _shift(slot.astimezone(place), self.shift)
        if self.form == "date":
            return shifted.date()
        return shifted if self.form == "datetime" else shifted.isoformat()

    def json_at(self, slot: datetime, place: ZoneInfo) -> str:
        """Return the value for a slot as it is stored in a run's parameters."""
        value = self.at(slot, place)
        return value if isinstance(value, str) else value.isoformat()

    def data(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"shift": self.shift.total_seconds(), "form": self.form}

    @classmethod
    def of(cls, data: dict[str, Any]) -> SlotValue:
        """Return what `data` stands for."""
        return cls(timedelta(seconds=data["shift"]), data["form"])

    @classmethod
    def parse(cls, text: str) -> SlotValue | None:
        """
        Return what a command line means by `SLOT`, `SLOT-1d`, `SLOT.date-1d` or `SLOT+2h`, or None for another text.

        Raises `DefinitionError` for what only begins like that.
        """
        if text != "SLOT" and not text.startswith(("SLOT+", "SLOT-", "SLOT.date")):
            return None
        rest = text.removeprefix("SLOT")
        form = "date" if rest.startswith(".date") else "text"
        rest = rest.removeprefix(".date")
        if rest and rest[0] not in "+-":
            raise DefinitionError(f"{text!r}: write SLOT, SLOT-1d, SLOT+2h or SLOT.date-1d")
        shift = timedelta(seconds=seconds(rest[1:], text)) if rest else timedelta()
        return cls(-shift if rest.startswith("-") else shift, form)


#: The slot that fires a run, for the parameters of a trigger.
SLOT = SlotValue()


def _members(annotation: Any) -> set[Any]:
    """Return the types that an annotation allows."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    arguments = get_args(annotation)
    return {member for one in arguments for member in _members(one)} if arguments else {annotation}


def _shift(shown: datetime, shift: timedelta) -> datetime:
    """Move a local time: by days as a calendar does, and by the rest as a clock does."""
    days, rest = divmod(abs(shift), _DAY)
    sign = -1 if shift < timedelta() else 1
    moved = (shown + sign * days * _DAY).astimezone(UTC) + sign * rest
    return moved.astimezone(shown.tzinfo)
