"""Turns with another program: where TURNS names a file, both lock it around each of their runs."""

import contextlib
import fcntl
import os
import time


@contextlib.contextmanager
def turn(measured):
    """Nothing for a run that only warms up."""
    path = os.environ.get("TURNS")
    if not path or not measured:
        yield
        return
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    time.sleep(0.01)  # for the other to take it
