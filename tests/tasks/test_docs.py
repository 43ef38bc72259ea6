"""docs/tasks.md: its code runs, and its tables say what the readers do."""

import re
from pathlib import Path

from ogrpo.tasks.registry import TASKS

PAGE = (Path(__file__).parents[2] / "docs/tasks.md").read_text()


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "problems.jsonl").write_text(lines)
    names = {}
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(first, names)
    own = names["task"]
    assert (len(own), len(own.heldout)) == (1, 1)
    assert [(r.name, r.weight) for r in own.rewards] == [("right", 1.0), ("brief", 0.5)]
    exec(second, names)
    assert (len(names["task"]), len(names["task"].heldout)) == (2000, 200)


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
