"""
The verbs: one small function for each, over the statements in statements.sql. The only package that writes a state.

Each takes a psycopg2 connection. In autocommit a verb is a transaction of its own; in an open transaction it is part of
that. A row that a verb does not answer for was not the caller's any more: a value, not an error.
"""

from __future__ import annotations

from flowforge.transitions.dispatch import Dispatch, Mark, defer, resend, take
from flowforge.transitions.ending import Ending, Outcome, finish, skip
from flowforge.transitions.leases import Claim, Late, Release, claim, expire, guard, hand_back, renew, retry
from flowforge.transitions.starting import NewRun, Reservation, forget, reserve, start_run

__all__ = [
    "Claim",
    "Dispatch",
    "Ending",
    "Late",
    "Mark",
    "NewRun",
    "Outcome",
    "Release",
    "Reservation",
    "claim",
    "defer",
    "expire",
    "finish",
    "forget",
    "guard",
    "hand_back",
    "renew",
    "resend",
    "reserve",
    "retry",
    "skip",
    "start_run",
    "take",
]
