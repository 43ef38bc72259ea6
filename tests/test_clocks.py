"""Clocks jump: what decides anything is measured by a clock that does not."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"

CALENDARS = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
TIMES_OF_FILES = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "st_atime", "st_atime_ns"}
NAMES = {"datetime.now"}
READERS = {
    "ogrpo/system/lock.py": (NAMES, "shows since when a run's folder is held"),
    "ogrpo_plan/main.py": (NAMES, "names a new folder"),
    "ogrpo/run/main.py": (NAMES, "names a new folder"),
}
"""The only files that may read such a clock, and why a jump of it costs nothing."""


def readings(source: str) -> set[str]:
    """The clocks of the calendar that a module reads."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names |= {node.attr, ".".join(ast.unparse(node).split(".")[-2:])}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names & (CALENDARS | TIMES_OF_FILES)


def test_readings_are_found():
    assert readings("import time\ndeadline = time.time() + 5") == {"time.time"}
    assert readings("import datetime\ndatetime.datetime.now()") == {"datetime.now"}
    assert readings("from time import time") == {"time.time"}
    assert readings("age = file.stat().st_mtime") == {"st_mtime"}
    assert readings("import time\ntime.monotonic() + time.perf_counter()") == set()


def test_nothing_that_decides_reads_a_clock_that_jumps():
    readers = {
        path.relative_to(ROOT).as_posix(): clocks
        for path in ROOT.rglob("*.py")
        if (clocks := readings(path.read_text()))
    }
    assert readers == {path: clocks for path, (clocks, _) in READERS.items()}
