"""
Python imports this first where its directory is on PYTHONPATH: a clock that is off by CLOCK_OFF seconds.

With CLOCK_STEPS set it is right until the process gets SIGUSR1, and off from then on. The monotonic clock is not off.
"""

import os
import signal
import time

import time_machine


def set_off(*_: object) -> None:
    """Set the clock of this process off."""
    time_machine.travel(time.time() + float(os.environ["CLOCK_OFF"]), tick=True).start()


if "CLOCK_STEPS" in os.environ:
    signal.signal(signal.SIGUSR1, set_off)
else:
    set_off()
