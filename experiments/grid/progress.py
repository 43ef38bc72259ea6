"""What a grid shows while it runs: one bar with the time left, or plain lines elsewhere."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.grid.cell import Cell
from ogrpo.config.train import TrainConfig

Kind = tuple[str, str, int]


def kind_of(cell: Cell) -> Kind:
    """Cells of a kind take about as long."""
    return cell.measure, cell.label, work_of(cell)


def work_of(cell: Cell) -> int:
    """Steps and updates of a training run; 1 of anything else."""
    if not isinstance(cell.config, TrainConfig):
        return 1
    return cell.config.schedule.steps + cell.config.schedule.updates


class TimeLeft:
    """How long the cells that are left may take, from those that are done."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._seconds: dict[Kind, list[float]] = defaultdict(list)

    def took(self, cell: Cell, seconds: float) -> None:
        """Takes in how long a cell took."""
        self._seconds[kind_of(cell)].append(seconds)

    def of(self, cells: list[Cell]) -> float | None:
        """Seconds until these are done, processes sharing them evenly; None before any was."""
        if not self._seconds:
            return None
        known = {kind: sum(times) / len(times) for kind, times in self._seconds.items()}
        rate = sum(known.values()) / sum(kind[2] for kind in known)
        each = [known.get(kind_of(cell), rate * work_of(cell)) for cell in cells]
        return max(sum(each) / self._jobs, max(each, default=0.0))


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class GridDisplay:
    """One bar over the grid on a terminal, a line for each cell elsewhere."""

    def __init__(self, progress: Progress, console: Console, jobs: int) -> None:
        self._progress, self._console = progress, console
        self._bar = progress.add_task("", total=None, left="", latest="")
        self._left, self._waiting = TimeLeft(jobs), dict[str, Cell]()
        self._done = self._failed = 0

    def expect(self, cells: list[Cell], finished: int) -> None:
        """More cells are known, of which some are finished already."""
        self._done += finished
        self._waiting |= {cell.key: cell for cell in cells}
        self._update("")

    def show(self, cell: Cell, seconds: float | None, words: str | None, score: str) -> None:
        """A cell has ended."""
        self._waiting.pop(cell.key, None)
        if words is None:
            self._done += 1
            self._left.took(cell, seconds or 0.0)
        else:
            self._failed += 1
            last = words.splitlines()[-1] if words else ""
            told = f"FAILED {cell}: {last}"
            self._console.print(told, style="red", markup=False, highlight=False, soft_wrap=True)
        told = f"{cell} {score}"
        self._update(told)
        if not self._console.is_terminal and words is None:
            left = self._left.of([*self._waiting.values()])
            more = f", {clock(left)} left" if left is not None and self._waiting else ""
            self._console.print(
                f"{self._done}/{self._total} {told} ({seconds:.0f} s{more})",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    @property
    def _total(self) -> int:
        return self._done + self._failed + len(self._waiting)

    def _update(self, latest: str) -> None:
        left = self._left.of([*self._waiting.values()])
        self._progress.update(
            self._bar,
            total=self._total,
            completed=self._done + self._failed,
            left="" if left is None else f"{clock(left)} left",
            latest=latest,
        )


@contextmanager
def grid_display(console: Console, jobs: int) -> Iterator[GridDisplay]:
    """Shows a grid's progress until the block ends."""
    progress = Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[latest]}", markup=False),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        yield GridDisplay(progress, console, jobs)
