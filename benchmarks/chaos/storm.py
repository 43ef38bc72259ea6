"""Runs whose trainer, servers and reward processes are killed and stopped at random.

    python -m benchmarks.chaos storm --minutes 30 --seed 0

A storm has two servers of the embedded sampler over HTTP, the trainer, and the processes of a
reward that is slow. Whatever was killed is started again after a while: servers as they were, the
trainer by the command that it printed or, where it had no time to print, by --run-dir and --resume.

At the end the trainer gets SIGTERM, and what it leaves is examined: every prompt of every step
once, all records, finite weights, and as many completions without a verdict on disk as recorded.
"""

import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from safetensors.numpy import load_file

from benchmarks.chaos.compare import groups, prompt_differences
from benchmarks.chaos.processes import GO_ON, Server, Trainer, reward_processes, send
from benchmarks.chaos.schedules import Schedule, make_task
from benchmarks.rows import read_rows

SCHEDULE = Schedule(
    "--schedule.sync-interval=2 --schedule.sync-offset=1 --schedule.evaluate-every=200"
    " --checkpoint.every=5 --reward.call-seconds=4 --replay.groups=16 --replay.sampler=uniform",
    reward="pondered",
)
STEPS = 1_000_000
GROUP = 4
STOPPED_BY_SIGNAL, ENDED_WITH_ADVICE = 130, 2
LONGEST = 180.0
"""Seconds without a new step until the run is given up."""


class Toll:
    """Blows by kind, and the seconds after each until a step that had not been before."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.waits: defaultdict[str, list[float]] = defaultdict(list)
        self.open: list[tuple[str, float, int]] = []

    def struck(self, kind: str, step: int) -> None:
        """Notes a blow."""
        self.times[kind] += 1
        self.open.append((kind, time.monotonic(), step))

    def reached(self, step: int) -> None:
        """Notes how far the run is."""
        for kind, begin, before in self.open:
            if step > before:
                self.waits[kind].append(time.monotonic() - begin)
        self.open = [each for each in self.open if step <= each[2]]

    def show(self) -> None:
        """Prints a table."""
        print(f"\n{'what':<26}{'times':>6}{'recovered':>11}{'median s':>10}{'longest s':>11}")
        for kind, times in sorted(self.times.items()):
            waits = self.waits[kind]
            middle, longest = (f(waits) if waits else float("nan") for f in (median, max))
            print(f"{kind:<26}{times:>6}{len(waits):>11}{middle:>10.1f}{longest:>11.1f}")


class Storm:
    """The processes of a run in a scratch folder, and what is done to them."""

    def __init__(self, scratch: Path, rng: np.random.Generator) -> None:
        self.toll, self.wrong = Toll(), []
        self._scratch, self._run, self._rng = scratch, scratch / "run", rng
        task = make_task(scratch / "task")
        self._model = self._run / "initial"
        self._servers = [Server(self._model, scratch / f"server-{n}.log") for n in range(2)]
        words = SCHEDULE.words(task, self._run, STEPS)
        words += ["--rollout.url", *(server.url for server in self._servers)]
        self._trainer = Trainer(words, self._run, scratch / "trainer.log", scratch.name)
        self._due: list[tuple[float, Callable[[], None]]] = []
        stop, kill, term = signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM

        def reward() -> int | None:
            return next(iter(self._trainer.rewards()), None)

        def started() -> bool:
            return newest_step(self._run) >= 0

        self.blows: dict[str, tuple[int, Callable[[], bool]]] = {
            "reward process killed": (4, lambda: self._hit(reward(), kill)),
            "reward process stopped": (3, lambda: self._hit(reward(), stop, 8)),  # calls: 4
            "trainer killed": (1, self._kill_trainer),
            # `attend` starts it again when it has ended.
            "trainer terminated": (1, lambda: started() and self._hit(self._trainer.pid, term)),
            "trainer stopped": (2, lambda: self._hit(self._trainer.pid, stop)),
            "server killed": (3, self._kill_server),
            "server stopped": (3, lambda: self._hit(self._server().pid, stop)),
        }

    def play(self, minutes: float, blows: Sequence[str], pause: float) -> int:
        """Starts everything, strikes, calms down; prints what happened and is wrong.

        Returns:
          How much is wrong.
        """
        begin = time.monotonic()
        try:
            self._trainer.start()
            while not (self._model / "config.json").exists():  # what the servers start from
                late = time.monotonic() - begin > LONGEST
                if late or self._trainer.code is not None:
                    raise SystemExit(f"no weights to serve were left:\n{self._trainer.output()}")
                time.sleep(0.02)
            for server in self._servers:
                server.start()
            self.strike_each(blows)
            while not blows and time.monotonic() - begin < 60 * minutes:
                self.attend(float(self._rng.uniform(0, 2 * pause)))
                self.strike()
            self._calm()
        finally:
            self._trainer.signal(signal.SIGKILL)
            left = [pid for server in self._servers for pid in server.stop()]
        self.wrong += [f"processes of servers are left: {left}"] if left else []
        self.wrong += examine(self._run)
        time.sleep(1)  # an orphan notices that its pipe is closed
        if orphans := reward_processes(self._scratch.name):
            self.wrong.append(f"processes of rewards outlived their trainers: {orphans}")
        self.toll.show()
        recorded = read_rows(self._run / "metrics.jsonl")
        failed = sum(record.get("unjudged") or 0 for record in recorded)
        print(
            f"\n{recorded[-1]['step']} steps in {time.monotonic() - begin:.0f} s,"
            f" {self.toll.times.total()} blows; {recorded[-1]['completions']} completions,"
            f" {failed} of them without a verdict"
        )
        for line in self.wrong:
            print(f"WRONG: {line}")
        if not self.wrong:
            print("every prompt of every step is in the data once; no record is missing")
            shutil.rmtree(self._scratch)
        return len(self.wrong)

    # --- blows: each says whether what it is for was there to take it ---------------------------

    def strike(self, kind: str | None = None) -> bool:
        """Strikes one blow, of this kind or any; returns whether it was taken."""
        if kind is None:
            often = np.array([weight for weight, _ in self.blows.values()])
            kind = str(self._rng.choice([*self.blows], p=often / often.sum()))
        step = newest_step(self._run)
        if struck := self.blows[kind][1]():
            self.toll.struck(kind, step)
        return struck

    def strike_each(self, kinds: Sequence[str]) -> None:
        """Strikes a blow of each kind, when the run has recovered from the one before."""
        for kind in kinds:
            begin, before = time.monotonic(), max(newest_step(self._run), 0)
            while self.toll.open or newest_step(self._run) <= before or not self.strike(kind):
                self.attend(0.05)
                if time.monotonic() - begin > LONGEST:
                    late = f"no step after {before} in {LONGEST:g} s, before: {kind}"
                    self.wrong.append(late)
                    return

    def _server(self) -> Server:
        return self._servers[int(self._rng.integers(len(self._servers)))]

    def _hit(self, pid: int | None, number: signal.Signals, most: float = 5) -> bool:
        """Sends a signal; whom it stops goes on within `most` seconds."""
        if pid is None:
            return False
        send(pid, number)
        if number == signal.SIGSTOP:
            self._later(most, partial(send, pid, signal.SIGCONT))
        return True

    def _kill_server(self) -> bool:
        server = self._server()
        if not self._hit(server.pid, signal.SIGKILL):
            return False
        server.wait()
        self._later(5, server.start)
        return True

    def _kill_trainer(self) -> bool:
        if not self._hit(self._trainer.pid, signal.SIGKILL):
            return False
        self._trainer.wait(LONGEST)
        self._later(2, self._trainer.start)
        return True

    def _later(self, most: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + float(self._rng.uniform(0, most)), act))

    # --- keeping it alive ----------------------------------------------------------------------

    def attend(self, seconds: float) -> None:
        """Does what is due for so long, and starts the trainer again where it ended by itself."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for each in [each for each in self._due if each[0] <= now]:
                self._due.remove(each)
                each[1]()
            restarts = any(act == self._trainer.start for _, act in self._due)
            if self._trainer.code is not None and not restarts:
                self._check_end(self._trainer.code)
                self._trainer.start()
            self.toll.reached(newest_step(self._run))
            if now >= end:
                return
            time.sleep(0.02)

    def _check_end(self, code: int) -> None:
        """Notes that the trainer ended by itself, which is right where it says how to go on."""
        output, step = self._trainer.output(), newest_step(self._run)
        expected = code == STOPPED_BY_SIGNAL and (GO_ON in output or step < 0)
        if expected or code == -signal.SIGTERM:  # before or after what a signal would interrupt
            return
        last = " / ".join((output.strip().splitlines() or ["nothing"])[-3:])
        if code == ENDED_WITH_ADVICE and GO_ON in output:
            self.toll.struck("trainer ended by itself", step)
        else:
            self.wrong.append(f"the trainer ended with {code}: {last}")
        print(f"the trainer ended by itself with {code}: {last}", flush=True)

    def _calm(self) -> None:
        """Waits until everything runs again and the run got further, and stops it."""
        while self._due:
            self.attend(0.1)
        begin, before = time.monotonic(), newest_step(self._run)
        while newest_step(self._run) <= before + 1 or self.toll.open:
            self.attend(0.1)
            if time.monotonic() - begin > LONGEST:
                self.wrong.append(f"no step after {before} within {LONGEST:g} s of calm")
                return
        self._trainer.signal(signal.SIGTERM)
        if (code := self._trainer.wait(LONGEST)) != STOPPED_BY_SIGNAL:
            self.wrong.append(f"stopped by SIGTERM, the trainer ended with {code}")


def newest_step(run: Path) -> int:
    """Returns the step of the last whole record on disk; -1 where there is none."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return -1
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - (1 << 16)))
        lines = opened.read().splitlines(keepends=True)
    whole = [line for line in lines if line.startswith(b'{"step": ') and line.endswith(b"\n")]
    return int(whole[-1][len(b'{"step": ') :].split(b",")[0]) if whole else -1


def examine(run: Path) -> Iterator[str]:
    """Yields what a run that was stormed lacks."""
    recorded = read_rows(run / "metrics.jsonl")
    yield from prompt_differences(run, steps=recorded[-1]["step"], size=GROUP)
    files = [*(run / "model").glob("*.safetensors")]
    for file in files:
        for name, array in load_file(file).items():
            if not np.isfinite(array).all():
                yield f"{file.name}: {name} is not finite"
    if not files:
        yield "there is no model"
    failed, silent = sum(record.get("unjudged") or 0 for record in recorded), 0
    for row in groups(run):
        without = sum(stretch["end"] - stretch["start"] for stretch in row["without_loss"])
        silent += without == len(row["token_ids"])
    if failed != silent:
        yield f"{failed} completions were recorded without a verdict, {silent} carry no loss"


def study(
    minutes: float = 30.0, blows: tuple[str, ...] = (), pause: float = 3.0, seed: int = 0
) -> int:
    """Kills and stops all processes of a run at random; returns how much is wrong.

    Args:
      minutes: how long it lasts.
      blows: just these kinds, in order, each when the run has recovered from the one before.
      pause: mean seconds between two blows.
      seed: of the blows.
    """
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-storm-"))
    print(f"seed {seed}, in {scratch}", flush=True)
    return Storm(scratch, np.random.default_rng(seed)).play(minutes, blows, pause)
