"""`python -m flowforge` is `flowforge`."""

from __future__ import annotations

from flowforge.cli import main

main()
