"""Turns of a second with another program: where TURNS names a file, whoever has locked it runs."""

import fcntl
import os
import time


class Turns:
    def __init__(self):
        self.file, self.taken = None, 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.give()

    def take(self):
        """Before each run."""
        path = os.environ.get("TURNS")
        if not path or (self.file and time.monotonic() - self.taken < 1):
            return
        self.give()
        self.file = open(path)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.taken = time.monotonic()

    def give(self):
        if self.file:
            self.file.close()
            self.file = None
            time.sleep(0.01)  # for the other to take it
