"""Runs that are killed with SIGKILL and resumed until done, beside the same runs undisturbed.

    python -m benchmarks.chaos kills --runs 30 --seed 0

Half of the kills come at a change of a file in the run's folder that is drawn by its number, or a
few milliseconds after it; the others at a moment drawn over the process's life, start-up included.
What a kill was drawn from depends on the seed alone; where a moment falls depends on the machine.
"""

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.chaos import victim
from benchmarks.chaos.compare import differences, prompt_differences
from benchmarks.chaos.schedules import SCHEDULES, STEPS, Schedule, make_task
from benchmarks.chaos.servers import Server, free_port
from benchmarks.chaos.victim import AtWrite

NOTHING_YET = "nothing to resume"
LIVES = 12
LONGEST = 300.0
"""Seconds until a life that does not end is a failure."""


@dataclass(frozen=True)
class Plan:
    """Where one kill is to come, as shares of the undisturbed life."""

    at_write: bool
    share: float
    delay: float

    @staticmethod
    def draw(rng: np.random.Generator, *, writes: bool = False) -> "Plan":
        """A kill, drawn with all of its parts so that the stream does not depend on its kind."""
        at_write, share, late = rng.random() < 0.5, float(rng.random()), rng.random() < 0.5
        delay = float(rng.uniform(0, 0.02))
        return Plan(writes or bool(at_write), share, delay if late and not writes else 0.0)


@dataclass
class Life:
    """What became of the processes of one start."""

    code: int
    """Exit code of the first that did not end well, -9 where it was killed; 0 if all did."""
    changes: list[str]
    """What the first process changed in the run's folder."""
    seconds: float
    said: str


@dataclass
class Outcome:
    """What became of a run."""

    schedule: str
    places: list[str] = field(default_factory=list)
    """Where each kill fell."""
    lives: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One run's schedule and place."""

    name: str
    schedule: Schedule
    folder: Path
    task: Path
    model: tuple[str, ...] = ()
    """Options in place of random weights: a folder, and the servers that serve it."""

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "run"

    def new(self) -> list[str]:
        """The options of a new run."""
        model, *servers = self.model or ("--model.random=tiny",)
        return [*self.schedule.words(self.task, self.run, model=model), *servers]

    def resume(self) -> list[str]:
        """The options that go on with it."""
        return [f"--run-dir={self.run}", "--resume"]


def live(case: Case, options: Sequence[str], plan: Plan | None, whole: Life | None) -> Life:
    """Starts the run's processes and waits for their end, which the plan may bring about.

    Args:
      case: the run.
      options: of each process.
      plan: where it is killed.
      whole: an undisturbed life, which the plan's shares are of.
    """
    number = len([*case.folder.glob("*.changes")])
    changes, log = case.folder / f"life-{number}.changes", case.folder / f"life-{number}.log"
    kill, moment, begun = None, None, time.monotonic()
    if plan is not None and whole is not None:
        left = 1 - 0.7 * steps_done(case.run) / (STEPS + 1)
        if plan.at_write:
            kill = AtWrite(1 + int(plan.share * left * len(whole.changes)), plan.delay)
        else:
            moment = begun + plan.share * left * whole.seconds
    where, pids = f"--processes.coordinator=127.0.0.1:{free_port()}", []
    for n in range(case.schedule.processes):
        several = [where, f"--processes.count={case.schedule.processes}", f"--processes.id={n}"]
        words = [*options, *(several if case.schedule.processes > 1 else [])]
        own = changes if n == 0 else changes.with_suffix(f".{n}")
        environment = case.schedule.environment
        pids.append(victim.start(words, log, own, kill=kill if n == 0 else None, **environment))
    codes = _ends(pids, moment)
    noted = changes.read_text().splitlines() if changes.exists() else []
    said = log.read_text() if log.exists() else ""
    worst = next((code for code in codes if code), 0)
    return Life(worst, noted, time.monotonic() - begun, said)


def _ends(pids: Sequence[int], moment: float | None) -> list[int]:
    """Exit codes of all; when one is killed the others are too, as by a scheduler."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LONGEST
    try:
        while len(codes) < len(pids):
            for pid in pids:
                if pid not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(found[1])
            now = time.monotonic()
            due = moment is not None and now >= moment
            if due or now > deadline or -signal.SIGKILL in codes.values():
                for pid in pids:
                    if pid not in codes:
                        os.kill(pid, signal.SIGKILL)
                moment = None
            time.sleep(0.002)
    finally:
        for pid in pids:
            if pid not in codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    killed = [code for code in codes.values() if code == -signal.SIGKILL]
    return killed or [codes[pid] for pid in pids]


def steps_done(run: Path) -> int:
    """Records on disk."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def killed(case: Case, whole: Life, reference: Path, plans: list[Plan]) -> Outcome:
    """A run that is killed as planned, resumed until done, and compared."""
    found, options = Outcome(case.name), case.new()
    while found.lives < LIVES:
        found.lives += 1
        life = live(case, options, plans.pop(0) if plans else None, whole)
        if life.code == -signal.SIGKILL:
            found.places.append(place(life))
            options = case.resume()
        elif life.code and NOTHING_YET in life.said:
            options = case.new()
        elif life.code:
            found.wrong = [f"ended with {life.code}: {life.said.splitlines()[-1:]}"]
            return found
        else:
            found.wrong = compared(case, reference)
            return found
    found.wrong = [f"not done after {LIVES} starts"]
    return found


def compared(case: Case, reference: Path) -> list[str]:
    """What differs from the undisturbed run, or with a longer lead from its prompts."""
    if case.schedule.exact:
        return differences(case.run, reference)
    return [*prompt_differences(case.run, steps=STEPS, size=4)]


def place(life: Life) -> str:
    """Where a kill fell, by the last change before it."""
    last = life.changes[-1].split()[-1] if life.changes else ""
    if not last:
        return "start"
    return last.split("/")[0].lstrip(".").partition(".")[0]


class Study:
    """Runs over schedules in a scratch folder, each beside one that nobody disturbs."""

    def __init__(self, scratch: Path, seed: int, most: int, *, writes: bool) -> None:
        self._scratch, self._seed, self._most, self._writes = scratch, seed, most, writes
        self._task = make_task(scratch / "task")
        self._wholes: dict[str, Life] = {}
        self._servers: list[Server] = []
        self._model = scratch

    def run(self, n: int, name: str) -> Outcome:
        """The `n`-th run: killed, resumed and compared."""
        reference = self._case(name, "whole")
        if name not in self._wholes:
            self._wholes[name] = undisturbed(reference)
        rng = np.random.default_rng([self._seed, n])
        count = int(rng.integers(1, self._most + 1))
        plans = [Plan.draw(rng, writes=self._writes) for _ in range(count)]
        case = self._case(name, str(n))
        found = killed(case, self._wholes[name], reference.run, plans)
        if not found.wrong:
            shutil.rmtree(case.folder)
        return found

    def _case(self, name: str, label: str) -> Case:
        folder = self._scratch / f"{name}-{label}".replace(" ", "-")
        folder.mkdir(exist_ok=True)
        wanted = SCHEDULES[name]
        return Case(name, wanted, folder, self._task, self._served(wanted.servers))

    def _served(self, count: int) -> tuple[str, ...]:
        """The model's folder and the servers, which outlive the trainers that are killed."""
        if not count:
            return ()
        if len(self._servers) < count:
            folder = initial_model(self._case("lead 0", "served"))
            self._servers = [
                Server(folder, self._scratch / f"server-{n}.log") for n in range(count)
            ]
            for server in self._servers:
                server.start()
            self._model = folder
        urls = [server.url for server in self._servers[:count]]
        return (f"--model.path={self._model}", "--rollout.url", *urls)

    def close(self) -> None:
        """Ends the servers."""
        for server in self._servers:
            server.kill()


def initial_model(case: Case) -> Path:
    """A folder of weights that servers can start from: those of a run of one step."""
    case.folder.mkdir(exist_ok=True)
    life = live(case, [*case.new(), "--schedule.steps=1"], None, None)
    if life.code:
        raise SystemExit(f"a run of one step ended with {life.code}:\n{life.said}")
    return case.run / "model"


def undisturbed(case: Case) -> Life:
    """A whole life of a run."""
    life = live(case, case.new(), None, None)
    if life.code:
        raise SystemExit(f"{case.name}, undisturbed, ended with {life.code}:\n{life.said}")
    return life


def study(runs: int, seed: int, names: Sequence[str], most: int, *, writes: bool) -> int:
    """Kills and resumes runs over the schedules, prints a table; returns how many differ.

    Args:
      runs: how many, over the schedules in turn.
      seed: of the kills.
      names: of the schedules.
      most: kills in one run.
      writes: kill at changes of files alone, and not late: they come at the same places again.
    """
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-kills-"))
    print(f"seed {seed}, {runs} runs over {len(names)} schedules in {scratch}", flush=True)
    outcomes = []
    with closing(Study(scratch, seed, most, writes=writes)) as made:
        for n in range(runs):
            outcomes.append(found := made.run(n, names[n % len(names)]))
            told = "DIFFERS" if found.wrong else "equal"
            fell = ", ".join(found.places) or "-"
            print(f"run {n:>2}  {found.schedule:<14} killed at {fell}: {told}", flush=True)
            for line in found.wrong[:8]:
                print(f"        {line}", flush=True)
    show(outcomes)
    wrong = sum(bool(found.wrong) for found in outcomes)
    if not wrong:
        shutil.rmtree(scratch)
    return wrong


def show(outcomes: Sequence[Outcome]) -> None:
    """A table of the schedules."""
    print(f"\n{'schedule':<16}{'runs':>5}{'kills':>6}  {'equal':<7}where the kills fell")
    for name in dict.fromkeys(found.schedule for found in outcomes):
        mine = [found for found in outcomes if found.schedule == name]
        places = Counter(where for found in mine for where in found.places)
        equal = sum(not found.wrong for found in mine)
        fell = ", ".join(f"{where} {count}" for where, count in places.most_common())
        print(f"{name:<16}{len(mine):>5}{places.total():>6}  {f'{equal} of {len(mine)}':<7}{fell}")
    kills = sum(len(found.places) for found in outcomes)
    right = sum(not found.wrong for found in outcomes)
    print(f"{right} of {len(outcomes)} runs, killed {kills} times, ended as the undisturbed ones")
