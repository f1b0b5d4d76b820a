"""
Trouble on purpose: a load on a deployment while its processes are killed, frozen and cut off, and then a verdict.

Nothing is touched that was not started here: workers and schedulers of its own, behind proxies of its own, on a queue
of its own; servers only where they are embedded ones.
"""

from __future__ import annotations

from flowforge.chaos.consent import allow, require_consent
from flowforge.chaos.run import Order, Restarts, run

__all__ = ["Order", "Restarts", "allow", "require_consent", "run"]
