"""A run whose trainer, servers and reward processes are killed and stopped at random.

    python -m benchmarks.chaos storm --minutes 30 --seed 0
    python -m benchmarks.chaos storm --minutes 30 --urls http://HOST:8000 ... --model DIR

Two servers of the embedded sampler over HTTP, the trainer, and the processes of a reward that is
slow. Whatever was killed is started again after a while: servers as they were, the trainer by the
command that it printed or, where it had no time to print, by --run-dir and --resume. With `--urls`
the servers are somebody else's, and left alone. At the end the trainer is told to stop, and what it
leaves is examined: every prompt of every step once, all records, finite weights, and as many
completions without a verdict on disk as were told.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from safetensors.numpy import load_file

from benchmarks.chaos.compare import groups, prompt_differences, records
from benchmarks.chaos.kills import Case, initial_model
from benchmarks.chaos.schedules import Schedule, make_task
from benchmarks.chaos.servers import Server
from benchmarks.chaos.trainer import GO_ON, Trainer, judging

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


@dataclass
class Toll:
    """What happened, by kind, and how long until there was a step that had not been before."""

    times: dict[str, int] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=dict)
    open: list[tuple[str, float, int]] = field(default_factory=list)

    def struck(self, kind: str, step: int) -> None:
        """Notes a blow."""
        self.times[kind] = self.times.get(kind, 0) + 1
        self.open.append((kind, time.monotonic(), step))

    def reached(self, step: int) -> None:
        """Notes how far the run is."""
        over = [each for each in self.open if step > each[2]]
        for kind, begun, _ in over:
            self.waits.setdefault(kind, []).append(time.monotonic() - begun)
        self.open = [each for each in self.open if step <= each[2]]

    def show(self) -> None:
        """Prints a table."""
        print(f"\n{'what':<26}{'times':>6}{'recovered':>11}{'median s':>10}{'longest s':>11}")
        for kind, times in sorted(self.times.items()):
            waits = self.waits.get(kind, [])
            middle, longest = (f(waits) if waits else float("nan") for f in (median, max))
            print(f"{kind:<26}{times:>6}{len(waits):>11}{middle:>10.1f}{longest:>11.1f}")


class Storm:
    """The processes, and what is done to them."""

    def __init__(
        self,
        trainer: Trainer,
        servers: Sequence[Server],
        run: Path,
        rng: np.random.Generator,
        longest: float = LONGEST,
    ) -> None:
        self.toll, self.wrong = Toll(), []
        self._trainer, self._servers, self._run, self._rng = trainer, servers, run, rng
        self._longest = longest
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.blows = {
            "reward process killed": (4, self._kill_reward),
            "reward process stopped": (3, self._stop_reward),
            "trainer killed": (1, self._kill_trainer),
            "trainer terminated": (1, self._terminate_trainer),
            "trainer stopped": (2, self._stop_trainer),
        }
        if servers:
            self.blows["server killed"] = (3, self._kill_server)
            self.blows["server stopped"] = (3, self._stop_server)

    # --- blows ---------------------------------------------------------------------------------

    def strike(self, kind: str | None = None) -> bool:
        """One blow, of this kind or any, if what it is for is there to take it."""
        if kind is None:
            often = np.array([weight for weight, _ in self.blows.values()])
            kind = str(self._rng.choice([*self.blows], p=often / often.sum()))
        step = newest_step(self._run)
        if struck := self.blows[kind][1]():
            self.toll.struck(kind, step)
        return struck

    def strike_each(self, kinds: Sequence[str]) -> None:
        """A blow of each kind, when the run has recovered from the one before."""
        for kind in kinds:
            begun, before = time.monotonic(), newest_step(self._run)
            while not (self._well(before) and self.strike(kind)):
                self.attend(0.05)
                if time.monotonic() - begun > self._longest:
                    self.wrong.append(
                        f"no step after {before} in {self._longest:g} s, before: {kind}"
                    )
                    return

    def _well(self, before: int) -> bool:
        return not self.toll.open and newest_step(self._run) > max(before, 0)

    def _kill_server(self) -> bool:
        server = self._servers[int(self._rng.integers(len(self._servers)))]
        if not server.alive:
            return False
        server.kill()
        self._later(5, server.start)
        return True

    def _stop_server(self) -> bool:
        server = self._servers[int(self._rng.integers(len(self._servers)))]
        return self._stop(server.pid, 5)

    def _kill_reward(self) -> bool:
        found = self._trainer.rewards()
        for pid in found[:1]:
            send(pid, signal.SIGKILL)
        return bool(found)

    def _stop_reward(self) -> bool:
        found = self._trainer.rewards()
        return self._stop(found[0], 8) if found else False  # its calls may take 4

    def _kill_trainer(self) -> bool:
        if self._trainer.pid is None:
            return False
        self._trainer.signal(signal.SIGKILL)
        self._trainer.wait(LONGEST)
        self._later(2, self._trainer.start)
        return True

    def _terminate_trainer(self) -> bool:
        if self._trainer.pid is None or newest_step(self._run) < 0:
            return False
        self._trainer.signal(signal.SIGTERM)  # `attend` starts it again when it has ended
        return True

    def _stop_trainer(self) -> bool:
        return self._stop(self._trainer.pid, 5)

    def _stop(self, pid: int | None, most: float) -> bool:
        if pid is None:
            return False
        send(pid, signal.SIGSTOP)
        self._later(most, lambda: send(pid, signal.SIGCONT))
        return True

    def _later(self, most: float, what: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + float(self._rng.uniform(0, most)), what))

    # --- keeping it alive ----------------------------------------------------------------------

    def attend(self, seconds: float) -> None:
        """Does what is due for so long, and starts the trainer again where it ended by itself."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for each in [each for each in self._due if each[0] <= now]:
                self._due.remove(each)
                each[1]()
            if self._trainer.code is not None and not self._restarts():
                self._ended(self._trainer.code)
                self._trainer.start()
            self.toll.reached(newest_step(self._run))
            if now >= end:
                return
            time.sleep(0.02)

    def _restarts(self) -> bool:
        return any(what == self._trainer.start for _, what in self._due)

    def _ended(self, code: int) -> None:
        """The trainer ended by itself, which is right where it says how to go on."""
        said = self._trainer.said()
        told = code == STOPPED_BY_SIGNAL and (GO_ON in said or newest_step(self._run) < 0)
        if told or code == -signal.SIGTERM:  # before or after what a signal would interrupt
            return
        last = (said.strip().splitlines() or ["nothing"])[-3:]
        if code == ENDED_WITH_ADVICE and GO_ON in said:
            self.toll.struck("trainer ended by itself", newest_step(self._run))
            print(f"the trainer ended by itself: {' / '.join(last)}", flush=True)
            return
        self.wrong.append(f"the trainer ended with {code}: {' / '.join(last)}")
        print(self.wrong[-1], flush=True)

    def until_step(self, step: int) -> None:
        """Waits for a record; servers may take minutes to start."""
        begun = time.monotonic()
        while newest_step(self._run) <= step:
            self.attend(0.1)
            if time.monotonic() - begun > self._longest:
                raise SystemExit(
                    f"no step within {self._longest:g} s: {self._trainer.said()[-2000:]}"
                )

    def calm(self) -> None:
        """Everything runs again, the run gets further, and is told to stop."""
        while self._due:
            self.attend(0.1)
        begun, before = time.monotonic(), newest_step(self._run)
        while newest_step(self._run) <= before + 1 or self.toll.open:
            self.attend(0.1)
            if time.monotonic() - begun > self._longest:
                self.wrong.append(f"no step after {before} within {self._longest:g} s of calm")
                return
        self._trainer.signal(signal.SIGTERM)
        if (code := self._trainer.wait(LONGEST)) != STOPPED_BY_SIGNAL:
            self.wrong.append(f"told to stop, the trainer ended with {code}")


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def newest_step(run: Path) -> int:
    """The step of the last whole record on disk; -1 where there is none."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return -1
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - (1 << 16)))
        lines = opened.read().splitlines(keepends=True)
    whole = [line for line in lines if line.startswith(b'{"step": ') and line.endswith(b"\n")]
    return int(whole[-1][len(b'{"step": ') :].split(b",")[0]) if whole else -1


def examine(run: Path) -> Iterator[str]:
    """What a run that was stormed lacks."""
    told = records(run)
    yield from prompt_differences(run, steps=told[-1]["step"], size=GROUP)
    for file in (run / "model").glob("*.safetensors"):
        for name, array in load_file(file).items():
            if not np.isfinite(array).all():
                yield f"{file.name}: {name} is not finite"
    if not [*(run / "model").glob("*.safetensors")]:
        yield "there is no model"
    failed = sum(record.get("unjudged") or 0 for record in told)
    silent = sum(without_loss(row) for row in groups(run))
    if failed != silent:
        yield f"{failed} completions were told to have no verdict, {silent} carry no loss on disk"


def without_loss(row: dict) -> bool:
    """Whether no token of a completion is trained on."""
    left_out = sum(stretch["end"] - stretch["start"] for stretch in row["without_loss"])
    return left_out == len(row["token_ids"])


def study(
    seconds: float,
    kinds: Sequence[str],
    pause: float,
    seed: int,
    urls: Sequence[str],
    model: str,
) -> int:
    """Storms a run, prints what happened; returns how much is wrong.

    Args:
      seconds: how long it lasts.
      kinds: blows to be struck instead, one after the other, each when the last is recovered from.
      pause: seconds between two blows, on average.
      seed: of what is done when.
      urls: servers that are somebody else's.
      model: the folder that these serve.
    """
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-storm-"))
    print(f"seed {seed}, in {scratch}", flush=True)
    task, run = make_task(scratch / "task"), scratch / "run"
    servers = []
    if not urls:
        model = str(initial_model(Case("served", Schedule(), scratch / "served", task)))
        servers = [Server(Path(model), scratch / f"server-{n}.log") for n in range(2)]
    words = SCHEDULE.words(task, run, STEPS, model=f"--model.path={model}")
    words += ["--rollout.url", *(urls or [server.url for server in servers])]
    trainer = Trainer(words, run, scratch / "trainer.log", scratch.name)
    storm = Storm(trainer, servers, run, rng := np.random.default_rng(seed))
    try:
        for each in (*servers, trainer):
            each.start()
        begun = time.monotonic()
        storm.strike_each(kinds)
        while not kinds and time.monotonic() - begun < seconds:
            storm.attend(float(rng.uniform(0, 2 * pause)))
            storm.strike()
        storm.calm()
    finally:
        trainer.signal(signal.SIGKILL)
        for server in servers:
            server.kill()
    return told(storm, scratch, run, time.monotonic() - begun)


def told(storm: Storm, scratch: Path, run: Path, seconds: float) -> int:
    """Prints what happened and what is wrong; returns how much that is."""
    wrong = [*storm.wrong, *examine(run)]
    time.sleep(1)  # an orphan notices that its pipe is closed
    if left := judging(scratch.name):
        wrong.append(f"processes of rewards outlived their trainers: {left}")
    storm.toll.show()
    found = records(run)
    failed = sum(record.get("unjudged") or 0 for record in found)
    print(
        f"\n{found[-1]['step']} steps in {seconds:.0f} s, {sum(storm.toll.times.values())} blows;"
        f" {found[-1]['completions']} completions, {failed} of them without a verdict"
    )
    for line in wrong:
        print(f"WRONG: {line}")
    if not wrong:
        print("every prompt of every step is in the data once; no record is missing")
        shutil.rmtree(scratch)
    return len(wrong)
