"""What a reader off a terminal is told while programs compile and the warm start goes on."""

from io import StringIO

import pytest
from rich.console import Console

from ogrpo.report.progress import display, warm_start_bar


@pytest.fixture
def console():
    return Console(file=StringIO(), width=200)


def test_the_warm_start_tells_the_time_left_in_ten_lines(console):
    with warm_start_bar(console, 100) as show:
        for step in range(1, 101):
            show(step, 2 - step / 100, None)
    first, *lines = console.file.getvalue().splitlines()
    assert first == "warm start: compiling ..."
    assert lines[0] == "warm start: step 10 of 100, loss 1.900 nats a token, 0 s left"
    assert (len(lines), lines[-1]) == (10, "warm start: step 100 of 100, loss 1.000 nats a token")
    assert "nan" not in "".join(lines)


@pytest.mark.parametrize("begun", [0, 5])
def test_compiling_is_told_with_its_seconds(console, begun):
    with display(console, 9, begun, lambda: 12.4) as shown:
        for step in range(begun + (begun > 0), 9):
            shown.show({"step": step, "reward": 0.5})
    lines = console.file.getvalue().splitlines()
    update = ["compiling the programs of the update ..."] if begun == 0 else []
    assert lines == [*update, "programs compiled so far, in 12 s"]
