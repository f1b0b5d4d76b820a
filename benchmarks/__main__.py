"""Run the named benchmarks, or all."""

from __future__ import annotations

import sys

from benchmarks import engine, fan_out, memory, points, recovery

BENCHMARKS = {
    "engine": engine.main,
    "fan_out": fan_out.main,
    "memory": memory.main,
    "points": points.main,
    "recovery": recovery.main,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"-- {name}")
        BENCHMARKS[name]()
