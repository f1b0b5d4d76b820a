"""What is kept in Redis for those who watch. It may be lost at any time: it is then as if nothing had been seen yet."""

from __future__ import annotations

from flowforge.monitor.turns import Turn, Turns

__all__ = ["Turn", "Turns"]
