"""Tiny runs of every schedule, in which every step changes the weights."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

PROMPTS, HELDOUT = 24, 4
STEPS = 6
BATCH = 4
REWARD = """
import time

def even(completions, **columns):
    return [float(len(text) % 2) for text in completions]

def pondered(completions, **columns):
    time.sleep(0.05)
    return even(completions)
"""
SMALL = (
    "--rollout.group-size=4 --rollout.max-tokens=6"
    f" --schedule.prompts={BATCH} --schedule.evaluate-every=3"
    f" --evaluation.prompts={HELDOUT} --checkpoint.every=1 --optimizer.learning-rate=0.003"
    " --optimizer.warmup=0 --evaluation.no-gradient-variance"
).split()

DEVICES = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Schedule:
    """Options of a run, and what it needs beside it."""

    options: str = ""
    processes: int = 1
    servers: int = 0
    reward: str = "even"
    exact: bool = True
    """Whether a resumed run repeats the numbers, and not the prompts alone."""
    devices: int = 1
    """Devices of each process."""

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables of each process."""
        return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}={self.devices}"}

    def words(
        self, task: Path, run: Path, steps: int = STEPS, model: str = "--model.random=tiny"
    ) -> list[str]:
        """Returns all options of a new run."""
        return [
            model,
            f"--task={task / 'problems.jsonl'}",
            f"--data.heldout={task / 'heldout.jsonl'}",
            f"--rewards={task / 'rewards.py'}:{self.reward}",
            *SMALL,
            f"--schedule.steps={steps}",
            *self.options.split(),
            f"--run-dir={run}",
        ]


REUSED = "--schedule.replay=2 --replay.groups=16"
SCHEDULES = {
    "lead 0": Schedule("--schedule.sync-interval=2"),
    "lead 1": Schedule("--schedule.sync-interval=2 --schedule.sync-offset=1"),
    "replay": Schedule(f"{REUSED} --replay.sampler=uniform --replay.max-uses=3"),
    "adaptive": Schedule(
        f"{REUSED} --replay.sampler=fresh --reuse.adaptive --reuse.limits.kl=0.0003"
        " --reuse.limits.clip-step=0.1"
    ),
    "adapters": Schedule("--lora.rank=2 --trust-region.kind=clip"),
    "stages": Schedule("--schedule.stages=2 --schedule.reset-optimizer --knobs.beta=0.1"),
    "packed": Schedule(
        "--optimizer.batching=packed --certificate.delta=0.05 --certificate.completions=1"
    ),
    "together": Schedule(
        f"{REUSED} --replay.sampler=uniform --schedule.sync-interval=2 --schedule.sync-offset=1"
        " --lora.rank=2 --schedule.stages=2 --schedule.reset-optimizer --knobs.beta=0.1"
        " --optimizer.batching=packed"
    ),
    "two processes": Schedule(
        "--mesh.data=2 --mesh.fsdp=2 --mesh.tensor=2 --schedule.sync-interval=2",
        processes=2,
        devices=4,
    ),
    "two servers": Schedule("--schedule.sync-interval=2 --schedule.sync-offset=1", servers=2),
    "lead 3": Schedule("--schedule.sync-interval=2 --schedule.sync-offset=3", exact=False),
}


def make_task(folder: Path) -> Path:
    """Writes prompts, held-out prompts and a reward by the length of the answer into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    heldout = range(PROMPTS, PROMPTS + HELDOUT)
    for name, numbers in (("problems.jsonl", range(PROMPTS)), ("heldout.jsonl", heldout)):
        lines = [{"prompt": f"{n} and {n * n} are", "answer": str(n)} for n in numbers]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rewards.py").write_text(REWARD)
    return folder
