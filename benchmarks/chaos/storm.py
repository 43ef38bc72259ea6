"""Runs whose trainer, servers and reward processes are killed and stopped at random.

    python -m benchmarks.chaos storm --minutes 30 --seed 0
    python -m benchmarks.chaos storm --minutes 30 --urls http://HOST:8000 ... --model DIR
    python -m benchmarks.chaos engines --minutes 15 --python VLLM_PYTHON

A storm has two servers of the embedded sampler over HTTP, the trainer, and the processes of a
reward that is slow. Whatever was killed is started again after a while: servers as they were, the
trainer by the command that it printed or, where it had no time to print, by --run-dir and --resume.
With `--urls` the servers are somebody else's, and left alone.

`engines` has two real vLLM servers and kills the engine of one of those that are well, again and
again; `ogrpo-serve --restarts` starts its server again with its first weights, and nobody else does
anything. A start takes a minute or more, so that there are times without any server.

At the end the trainer gets SIGTERM, and what it leaves is examined: every prompt of every step
once, all records, finite weights, and as many completions without a verdict on disk as recorded.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from safetensors.numpy import load_file

from benchmarks.chaos.compare import groups, prompt_differences, records
from benchmarks.chaos.kills import initial_model
from benchmarks.chaos.processes import GO_ON, Server, Trainer, reward_processes, send
from benchmarks.chaos.schedules import Schedule, make_task

SCHEDULE = Schedule(
    "--schedule.sync-interval=2 --schedule.sync-offset=1 --schedule.evaluate-every=200"
    " --checkpoint.every=5 --reward.call-seconds=4 --replay.groups=16 --replay.sampler=uniform",
    reward="pondered",
)
ENGINES = Schedule(
    "--schedule.sync-interval=2 --schedule.sync-offset=1 --schedule.evaluate-every=1000"
    " --checkpoint.every=50 --rollout.timeout=60 --rollout.patience=300"
)
STEPS = 1_000_000
GROUP = 4
STOPPED_BY_SIGNAL, ENDED_WITH_ADVICE = 130, 2
LONGEST, LONGEST_START = 180.0, 600.0
"""Seconds without a new step until the run is given up: of a storm, and where vLLM starts."""
KIND = "engine killed"
COUNTED = ("requests", "failed_requests", "discarded_groups", "sync/count", "rollout/refused")


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
    """The processes of a run in a scratch folder, and what is done to them.

    Args:
        schedule: the run's.
        model: the folder of its first weights.
        urls: servers that are left alone; empty: `servers` are used.
        servers: servers that are started and ended with the run.
        longest: seconds without a new step until the run is given up.
    """

    def __init__(
        self,
        scratch: Path,
        schedule: Schedule,
        model: Path,
        servers: Sequence[Server],
        rng: np.random.Generator,
        *,
        urls: Sequence[str] = (),
        longest: float = LONGEST,
    ) -> None:
        self.toll, self.wrong = Toll(), []
        self._scratch, self._run = scratch, scratch / "run"
        words = schedule.words(scratch / "task", self._run, STEPS, f"--model.path={model}")
        words += ["--rollout.url", *(urls or [server.url for server in servers])]
        self._trainer = Trainer(words, self._run, scratch / "trainer.log", scratch.name)
        self._servers, self._rng, self._longest = servers, rng, longest
        self._due: list[tuple[float, Callable[[], None]]] = []
        stop, kill = signal.SIGSTOP, signal.SIGKILL
        self.blows: dict[str, tuple[int, Callable[[], bool]]] = {
            "reward process killed": (4, lambda: self._hit(self._reward(), kill)),
            "reward process stopped": (3, lambda: self._hit(self._reward(), stop, 8)),  # calls: 4
            "trainer killed": (1, self._kill_trainer),
            "trainer terminated": (1, self._terminate_trainer),
            "trainer stopped": (2, lambda: self._hit(self._trainer.pid, stop)),
        }
        if servers:
            self.blows["server killed"] = (3, self._kill_server)
            self.blows["server stopped"] = (3, lambda: self._hit(self._server().pid, stop))

    def play(self, act: Callable[[], None]) -> int:
        """Starts everything, acts, calms down; prints what happened and is wrong.

        Returns:
            How much is wrong.
        """
        begin = time.monotonic()
        try:
            for each in (*self._servers, self._trainer):
                each.start()
            act()
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
        recorded = records(self._run)
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
                if time.monotonic() - begin > self._longest:
                    late = f"no step after {before} in {self._longest:g} s, before: {kind}"
                    self.wrong.append(late)
                    return

    def _server(self) -> Server:
        return self._servers[int(self._rng.integers(len(self._servers)))]

    def _reward(self) -> int | None:
        return next(iter(self._trainer.rewards()), None)

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

    def _terminate_trainer(self) -> bool:
        # `attend` starts it again when it has ended.
        return newest_step(self._run) >= 0 and self._hit(self._trainer.pid, signal.SIGTERM)

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

    def until_step(self, step: int) -> None:
        """Waits for a record after a step; servers may take minutes to start."""
        begin = time.monotonic()
        while newest_step(self._run) <= step:
            self.attend(0.1)
            if time.monotonic() - begin > self._longest:
                output = self._trainer.output()[-2000:]
                raise SystemExit(f"no step within {self._longest:g} s: {output}")

    def _calm(self) -> None:
        """Waits until everything runs again and the run got further, and stops it."""
        while self._due:
            self.attend(0.1)
        begin, before = time.monotonic(), newest_step(self._run)
        while newest_step(self._run) <= before + 1 or self.toll.open:
            self.attend(0.1)
            if time.monotonic() - begin > self._longest:
                self.wrong.append(f"no step after {before} within {self._longest:g} s of calm")
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
    recorded = records(run)
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
    minutes: float = 30.0,
    blows: tuple[str, ...] = (),
    pause: float = 3.0,
    seed: int = 0,
    urls: tuple[str, ...] = (),
    model: Path | None = None,
) -> int:
    """Kills and stops all processes of a run at random; returns how much is wrong.

    Args:
        minutes: how long it lasts.
        blows: just these kinds, in order, each when the run has recovered from the one before.
        pause: mean seconds between two blows.
        seed: of the blows.
        urls: servers that are somebody else's, and left alone.
        model: the folder that they serve.
    """
    if bool(urls) != bool(model):
        sys.exit("give --urls and --model together")
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-storm-"))
    print(f"seed {seed}, in {scratch}", flush=True)
    task, rng = make_task(scratch / "task"), np.random.default_rng(seed)
    folder = model or initial_model(scratch / "served", task)
    count = 0 if urls else 2
    servers = [Server(folder, scratch / f"server-{n}.log") for n in range(count)]
    storm = Storm(scratch, SCHEDULE, folder, servers, rng, urls=urls)

    def act() -> None:
        begin = time.monotonic()
        storm.strike_each(blows)
        while not blows and time.monotonic() - begin < 60 * minutes:
            storm.attend(float(rng.uniform(0, 2 * pause)))
            storm.strike()

    return storm.play(act)


def study_engines(
    minutes: float = 15.0,
    every: float = 60.0,
    seed: int = 0,
    python: str | None = os.environ.get("OGRPO_VLLM_PYTHON"),
) -> int:
    """Kills an engine of two real vLLM servers again and again; returns how much is wrong.

    Args:
        minutes: how long.
        every: seconds between two kills.
        seed: of the kills.
        python: the interpreter that has vLLM.
    """
    if python is None:
        sys.exit("give --python, an interpreter that has vLLM (or OGRPO_VLLM_PYTHON)")
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-engines-"))
    print(f"seed {seed}, in {scratch}", flush=True)
    model = initial_model(scratch / "served", make_task(scratch / "task"))
    kills, rng = int(60 * minutes / every), np.random.default_rng(seed)
    logs = [scratch / f"server-{n}.log" for n in range(2)]
    servers = [Server(model, log, python=python, restarts=2 * kills + 1) for log in logs]
    storm = Storm(scratch, ENGINES, model, servers, rng, longest=LONGEST_START)

    def kill() -> bool:
        pids = [pid for server in servers for pid in server.engines()]
        if pids:
            send(pids[int(rng.integers(len(pids)))], signal.SIGKILL)
        return bool(pids)

    def act() -> None:
        storm.until_step(0)
        begin = time.monotonic()
        for n in range(kills):
            storm.attend(begin + n * every - time.monotonic())
            if not storm.strike(KIND):
                print(f"minute {n * every / 60:g}: no server is well, nothing to kill", flush=True)
        starts = sum(log.read_text().count("; starting it again") for log in logs)
        back = (scratch / "trainer.log").read_text(errors="replace").count(" is back")
        print(f"\nservers were started again {starts} times, and used again {back} times")
        last = records(scratch / "run")[-1]
        for name in sorted(last):
            if name in COUNTED or name.startswith(("servers/", "rollout/refused/")):
                print(f"{name} {last[name]:,.0f}")

    storm.blows = {KIND: (1, kill)}
    return storm.play(act)
