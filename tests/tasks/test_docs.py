"""docs/tasks.md: its tables say what the readers do."""

import re
from pathlib import Path

from ogrpo.tasks.registry import TASKS

PAGE = (Path(__file__).parents[2] / "docs/tasks.md").read_text()


def test_the_tables_hold_every_task_and_its_protocol():
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| `[\w-]+` \|", line)]
    protocols = {
        cells[0].strip("| `"): [float(cell.strip("| ")) for cell in cells[1:]]
        for cells in rows
        if re.fullmatch(r"\d+", cells[1])
    }
    expected = {
        name: [r.protocol.samples, r.protocol.temperature, r.protocol.max_tokens]
        for name, r in TASKS.items()
    }
    assert protocols == expected
    named = [cells[0].strip("| `") for cells in rows]
    assert all(named.count(name) == 2 for name in TASKS)
