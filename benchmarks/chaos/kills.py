"""Runs that are killed with SIGKILL and resumed until done, beside the same runs undisturbed.

    python -m benchmarks.chaos kills --runs 30 --seed 0

Half of the kills come at a change of a file in the run's folder that is drawn by its number, or a
few milliseconds after it; the others at a moment drawn over the process's life, start-up included.
What a kill is drawn from depends on the seed alone; where a moment falls depends on the machine.

Trainers are forks of this process, which has everything imported. An audit hook sees each file that
Python opens for writing, makes, renames or deletes in the run's folder, and SIGKILL in the hook
comes before it. What C++ writes (the arrays of a checkpoint) has no such events; moments by the
clock and delays after an event fall there too.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.chaos.compare import differences, prompt_differences
from benchmarks.chaos.processes import Server, die_with_parent, free_port
from benchmarks.chaos.schedules import SCHEDULES, STEPS, Schedule, make_task
from benchmarks.rows import table
from ogrpo.cli import main

NOTHING_YET = "nothing to resume"
NOBODY = "127.0.0.1:9"
LIVES = 12
LONGEST = 300.0
"""Seconds until a life that does not end is a failure."""
HUNG = 124
"""Its exit code, as that of the command `timeout`."""
CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink"})


class Plan(NamedTuple):
    """The place of one kill, as shares of the undisturbed life."""

    at_write: bool
    share: float
    delay: float

    @staticmethod
    def draw(rng: np.random.Generator, *, writes: bool = False) -> "Plan":
        """Draws a kill with all of its parts, so that the stream does not depend on its kind."""
        at_write, share, late = rng.random() < 0.5, float(rng.random()), rng.random() < 0.5
        delay = float(rng.uniform(0, 0.02))
        return Plan(writes or bool(at_write), share, delay if late and not writes else 0.0)


class Life(NamedTuple):
    """The end of the processes of one start.

    Attributes:
      code: exit code of the first that did not end well, -9 where it was killed as planned,
        `HUNG` where it did not end; 0 if all ended well.
      seconds: from start to end.
      changes: what the first process changed in the run's folder, a line each.
      output: what they printed.
    """

    code: int
    seconds: float
    changes: Sequence[str] = ()
    output: str = ""

    @property
    def place(self) -> str:
        """Returns where a kill fell, by the last change before it."""
        last = self.changes[-1].split()[-1] if self.changes else ""
        return last.split("/")[0].lstrip(".").partition(".")[0] if last else "start"


def until_done(
    start: Callable[[bool, Plan | None], Life], plans: Sequence[Plan]
) -> tuple[list[Life], str]:
    """Kills a run as planned and resumes it until done.

    Args:
      start: whether the run is resumed, and the plan -> the life.
      plans: of the first lives.

    Returns:
      All lives, and what went wrong, "" if nothing.
    """
    lives, resume, queue = [], False, [*plans]
    while len(lives) < LIVES:
        lives.append(life := start(resume, queue.pop(0) if queue else None))
        if life.code == 0:
            return lives, ""
        resume = life.code == -signal.SIGKILL
        if not resume and NOTHING_YET not in life.output:
            return lives, f"ended with {life.code}: {life.output[-300:]}"
    return lives, f"not done after {LIVES} starts"


class Case(NamedTuple):
    """One run: its schedule, its place, and the options with which it begins."""

    schedule: Schedule
    folder: Path
    options: list[str]

    @property
    def run(self) -> Path:
        """Returns the run's folder."""
        return self.folder / "run"


def start(
    options: Sequence[str],
    folder: Path,
    log: Path,
    changes: Path,
    *,
    kill: tuple[int, float] | None,
    environment: Mapping[str, str],
) -> int:
    """Forks a trainer; returns its process id, which is its group's too.

    Args:
      options: of `ogrpo train`.
      folder: the run's.
      log: file for what it prints.
      changes: file in which it notes each change of a file below `folder`.
      kill: SIGKILL at the change of this number, or so many seconds after it.
      environment: variables that differ from this process's.
    """
    if pid := os.fork():
        return pid
    code: object = 1
    try:
        os.setsid()
        die_with_parent()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.environ.update(environment)
        sys.argv = ["ogrpo", "train", *options]
        sys.addaudithook(_Watch(folder, changes, kill))
        code = main.main(sys.argv[1:])
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()  # nothing is left for an interpreter to do
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


class _Watch:
    """The audit hook: notes changes below a folder, and kills its process at one of them."""

    def __init__(self, folder: Path, changes: Path, kill: tuple[int, float] | None) -> None:
        self._folder, self._seen = f"{folder}/", 0
        self._number, self._delay = kill or (0, 0.0)
        self._notes = os.open(changes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, event: str, arguments: tuple) -> None:
        if event == "open":
            _, mode, flags = arguments
            if isinstance(mode, str):
                changes = not set(mode).isdisjoint("wax+")
            else:
                written = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                changes = bool(written and not flags & os.O_DIRECTORY)
        else:
            changes = event in CHANGES
        if not changes or isinstance(arguments[0], int):
            return
        path = os.fsdecode(arguments[0])
        if not path.startswith(self._folder):
            return
        self._seen += 1
        os.write(self._notes, f"{event} {path.removeprefix(self._folder)}\n".encode())
        if self._seen == self._number:
            if self._delay:
                threading.Timer(self._delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)


def live(
    case: Case, options: Sequence[str], plan: Plan | None = None, whole: Life | None = None
) -> Life:
    """Starts the run's processes and waits for their end, which the plan may bring about.

    Args:
      whole: an undisturbed life, which the plan's shares are of.
    """
    case.folder.mkdir(exist_ok=True)
    number = len([*case.folder.glob("*.changes")])
    changes, log = case.folder / f"life-{number}.changes", case.folder / f"life-{number}.log"
    kill, moment, begin = None, None, time.monotonic()
    if plan is not None and whole is not None:
        metrics = case.run / "metrics.jsonl"
        steps = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        left = 1 - 0.7 * steps / (STEPS + 1)
        if plan.at_write:
            kill = 1 + int(plan.share * left * len(whole.changes)), plan.delay
        else:
            moment = begin + plan.share * left * whole.seconds
    count, address, pids = case.schedule.processes, f"127.0.0.1:{free_port()}", []
    for n in range(count):
        several = [f"--processes.coordinator={address}", f"--processes.count={count}"]
        words = [*options, *several, f"--processes.id={n}"] if count > 1 else [*options]
        notes, at = (changes, kill) if n == 0 else (changes.with_suffix(f".{n}"), None)
        environment = case.schedule.environment
        pids.append(start(words, case.run, log, notes, kill=at, environment=environment))
    codes = _exit_codes(pids, moment or begin + LONGEST)
    seconds = time.monotonic() - begin
    hung = moment is None and seconds >= LONGEST
    return Life(
        code=HUNG if hung else next((code for code in codes if code), 0),
        seconds=seconds,
        changes=changes.read_text().splitlines() if changes.exists() else [],
        output=log.read_text() if log.exists() else "",
    )


def _exit_codes(pids: Sequence[int], end: float) -> list[int]:
    """Waits for all processes, and kills them at `end`.

    When one is killed the others are too, as by a scheduler.

    Returns:
      The codes of those that were killed, if one was; otherwise of all.
    """
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        if time.monotonic() >= end or -signal.SIGKILL in codes.values():
            for pid in pids:
                if pid not in codes:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    killed = [code for code in codes.values() if code == -signal.SIGKILL]
    return killed or [codes[pid] for pid in pids]


def initial_model(folder: Path, task: Path) -> Path:
    """Returns a folder of weights for servers: what a run leaves that waits for none of them."""
    options = Schedule().words(task, folder / "run")
    case = Case(Schedule(), folder, options)
    life = live(case, [*options, f"--rollout.url=http://{NOBODY}", "--rollout.wait=0"])
    if not (initial := case.run / "initial").is_dir():
        raise SystemExit(f"no weights to serve were left:\n{life.output}")
    return initial


def killed(
    case: Case, whole: Life, reference: Path, plans: Sequence[Plan]
) -> tuple[list[str], list[str]]:
    """Kills a run as planned, resumes it until done, and compares it.

    An exact schedule is compared with the undisturbed run, another with its prompts alone.

    Returns:
      Where each kill fell, and what is wrong.
    """

    def start(resume: bool, plan: Plan | None) -> Life:
        options = [f"--run-dir={case.run}", "--resume"] if resume else case.options
        return live(case, options, plan, whole)

    lives, failure = until_done(start, plans)
    places = [life.place for life in lives if life.code == -signal.SIGKILL]
    if failure:
        return places, [failure]
    if case.schedule.exact:
        return places, [*differences(case.run, reference)]
    return places, [*prompt_differences(case.run, steps=STEPS, size=4)]


def show(number: int, what: str, wrong: Sequence[str]) -> None:
    """Prints the line of a run, and what is wrong with it."""
    print(f"run {number:<4}{what}: {'DIFFERS' if wrong else 'equal'}", flush=True)
    for line in wrong[:8]:
        print(f"        {line}", flush=True)


def study(
    runs: int = 30, seed: int = 0, most: int = 3, writes: bool = False, only: tuple[str, ...] = ()
) -> int:
    """Kills runs with SIGKILL at random, resumes and compares them; returns how many differ.

    Args:
      runs: how many, over the schedules in turn.
      seed: of the kills.
      most: kills in one run at most.
      writes: kill at changes of files alone, and not late: they come at the same places again.
      only: names of schedules; all of them by default.
    """
    if unknown := [name for name in only if name not in SCHEDULES]:
        sys.exit(f"there is no schedule {unknown[0]!r}; there are {', '.join(SCHEDULES)}")
    names = only or tuple(SCHEDULES)
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-kills-"))
    print(f"seed {seed}, {runs} runs over {len(names)} schedules in {scratch}", flush=True)
    task, wholes = make_task(scratch / "task"), {}
    outcomes: dict[str, list[tuple[list[str], list[str]]]] = defaultdict(list)
    servers: list[Server] = []  # which outlive the trainers that are killed

    def case(name: str, label: str) -> Case:
        schedule, folder = SCHEDULES[name], scratch / f"{name}-{label}".replace(" ", "-")
        if not schedule.servers:
            return Case(schedule, folder, schedule.words(task, folder / "run"))
        model = scratch / "served" / "run" / "initial"
        if not servers:
            initial_model(scratch / "served", task)
            logs = (scratch / f"server-{n}.log" for n in range(schedule.servers))
            servers.extend(Server(model, log) for log in logs)
            for server in servers:
                server.start()
        words = schedule.words(task, folder / "run", model=f"--model.path={model}")
        return Case(schedule, folder, [*words, "--rollout.url", *(one.url for one in servers)])

    try:
        for n in range(runs):
            name = names[n % len(names)]
            reference = case(name, "whole")
            if name not in wholes:
                wholes[name] = whole = live(reference, reference.options)
                if whole.code:
                    sys.exit(f"{name}, undisturbed, ended with {whole.code}:\n{whole.output}")
            rng = np.random.default_rng([seed, n])
            count = int(rng.integers(1, most + 1))
            plans = [Plan.draw(rng, writes=writes) for _ in range(count)]
            this = case(name, str(n))
            places, wrong = killed(this, wholes[name], reference.run, plans)
            outcomes[name].append((places, wrong))
            show(n, f"{name:<14} killed at {places}", wrong)
            if not wrong:
                shutil.rmtree(this.folder)
    finally:
        for server in servers:
            server.signal(signal.SIGKILL)
            server.wait()
    rows = []
    for name, of in outcomes.items():
        fell = Counter(place for places, _ in of for place in places)
        at = ", ".join(f"{place} {count}" for place, count in fell.most_common())
        rows.append([name, len(of), fell.total(), sum(not wrong for _, wrong in of), at])
    head = ["schedule", "runs", "kills", "equal", "where the kills fell"]
    print("", *table(head, rows), sep="\n")
    kills, equal = (sum(row[column] for row in rows) for column in (2, 3))
    print(f"{equal} of {runs} runs, killed {kills} times, ended as the undisturbed ones")
    if equal == runs:
        shutil.rmtree(scratch)
    return runs - equal
