"""Everything that can be done to runs: each act is a verb on the tables, and the same in the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.integration.acts.known import HOUR, QUEUES, Act
from tests.integration.acts.people import People
from tests.integration.acts.schedulers import Schedulers
from tests.integration.acts.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.acts.known import Draw

__all__ = ["HOUR", "QUEUES", "Act", "Acts"]

#: Acts that need something which came before.
_NEEDS = {
    "claim": "messages",
    "defer": "messages",
    "finish": "claims",
    "retry": "claims",
    "hand_back": "claims",
    "renew": "claims",
    "lose": "claims",
    "guard": "claims",
    "give_up": "unstarted",
    "cut_off": "asked",
    "resend": "published",
    "cancel_overdue": "overdue",
}


class Acts(Workers, Schedulers, People):
    """All acts, over what is known."""

    def looks(self) -> list[Act]:
        """Return what schedulers look for."""
        return [self.look_at_unstarted(), self.look_at_asked(), self.look_at_deadlines(), self.look_at_published()]

    def draw(self, data: Draw, names: Sequence[str]) -> Act:
        """Draw one of these acts, of those that can be done now."""
        able = [name for name in names if name not in _NEEDS or getattr(self, _NEEDS[name])]
        act: Act = getattr(self, data.draw(st.sampled_from(able), label="act"))(data)
        return act
