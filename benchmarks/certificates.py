"""Measures the gain of each period of default runs, beside what its certificate says.

    python -m benchmarks.certificates 0 1 2 3 4 --rows rows.jsonl    # a few minutes a seed
    python -m benchmarks.certificates --rows rows.jsonl              # the table of these rows

Runs the default preset, and at each synchronisation draws pairs of completions that the run never
sees: old and new weights answer a training prompt with the same random numbers. The mean difference
of their rewards is the gain, with its standard error. The run is the command's to the bit.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.rows import Row, add_row, read_rows, table
from experiments.grid.train import Bench
from ogrpo.batch import Batch
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.learner.hosts import fetch
from ogrpo.loop import LoopState, Parts, start, stream_seed, train
from ogrpo.loop.batches import make_batch
from ogrpo.loop.certify import NEW, OLD, SHARE, draw_gains, pair_gains
from ogrpo.loop.evaluate import withdraw
from ogrpo.rollout.collection import Request
from ogrpo.setup.presets import default

Array = NDArray[np.float64]
AIM = 0.02
"""Gains above it are to be certified."""
NULL = 0.0
"""Periods measured at most here are not."""


class Draws(NamedTuple):
    """Pairs of completions `[n]`, of the old weights and of the new."""

    old_rewards: Array
    new_rewards: Array
    old_gains: Array
    """The certificate's values of the old weights' draws."""
    new_gains: Array


def draw_pairs(state: LoopState, parts: Parts, pairs: int) -> Draws:
    """Draws pairs with common random numbers, each for a prompt of its own, and scores them.

    Args:
      state: at a period's end: the server has the old weights, the train state the new ones.
      parts: of the run; its evaluator's engine draws.
      pairs: so many, a multiple of the completions of a step.
    """
    problems, sampling = parts.prompts.train, replace(parts.collection.sampling, group_size=1)
    size = parts.schedule.prompts * parts.collection.sampling.group_size
    stream = PromptStream(len(problems), size, stream_seed(parts.seed, "gain", 0))
    sides = state.train.whole(state.server), state.train.whole()
    engine = parts.evaluator.engine
    temperature = jnp.float32(sampling.temperature)
    longest = parts.prompts.length, sampling.max_tokens

    def block(side: int, place: int) -> tuple[Array, Array]:
        numbers = [int(n) for n in stream.indices(place)]
        seed = stream_seed(parts.seed, "gain", place)
        request = Request(state.step, numbers, [problems[n] for n in numbers], seed)
        groups = engine.generate(request.prompts, sampling, seed)
        judged = parts.collection.reward_fn(request, range(len(groups)), groups)
        rewards = np.stack([each.rewards for each in judged])
        padded: Batch[np.ndarray] = pad_groups(groups, *longest, rewards=rewards)
        batch = make_batch(padded, parts.learner.packer, for_update=False).batch
        other = parts.learner.score(sides[1 - side], parts.learner.place(batch), temperature)
        log_probs = jnp.asarray(batch.behavior_log_probs), jnp.asarray(fetch(other))
        new, old = log_probs if side else log_probs[::-1]
        mask = jnp.asarray(batch.active_mask)
        gains = draw_gains(new, old, mask, jnp.asarray(rewards), share=SHARE)
        return rewards[:, 0].astype(np.float64), np.asarray(gains, np.float64)[:, 0]

    halves = []
    for side, params in enumerate(sides):
        engine.publish(params, state.step)
        places = range(state.step * 1000, state.step * 1000 + pairs // size)
        blocks = [block(side, place) for place in places]
        halves.append([np.concatenate(x) for x in zip(*blocks, strict=True)])
        withdraw(engine)
    (old_rewards, old_gains), (new_rewards, new_gains) = halves
    return Draws(old_rewards, new_rewards, old_gains, new_gains)


def period_rows(seed: int, pairs: int) -> Iterator[Row]:
    """Yields a row of each period of the default run of that seed."""
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(Path(made), Console(quiet=True))
        with bench.parts(replace(default(), seed=seed)) as (_, parts, first):
            for state, record in train(start(first, parts), parts):
                if record.get("certificate/bound") is None:
                    continue
                begin = time.process_time()
                draws = draw_pairs(state, parts, pairs)
                apart = pair_gains(draws.new_rewards, draws.old_rewards)
                values = np.concatenate([draws.old_gains] * OLD + [draws.new_gains] * NEW)
                row = {
                    "seed": seed,
                    "step": state.step,
                    "gain": float(apart.mean()),
                    "error": float(apart.std(ddof=1) / np.sqrt(apart.size)),
                    "pairs": apart.size,
                    "square": float(np.mean(values**2)),
                    "bound": record["certificate/bound"],
                    "completions": record["certificate/completions"],
                    "price": record["certificate/price"],
                    "seconds": time.process_time() - begin,
                }
                yield {name: float(f"{value:.6g}") for name, value in row.items()}
        bench.close()


def period_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of the page: by seed and of all, what gained and what was certified."""
    by_seed: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["seed"]):
        by_seed[f"{row['seed']:g}"].append(row)
    by_seed["all"] = list(rows)
    head = ["seed", "periods", f"gained more than {AIM:g}", "of these certified"]
    head += ["measured at 0 or below", "of these certified", "bounds over the gain", "completions"]
    lines = []
    for name, part in by_seed.items():
        gained = [row["bound"] > 0 for row in part if row["gain"] > AIM]
        idle = [row["bound"] > 0 for row in part if row["gain"] <= NULL]
        over = sum(row["bound"] > max(row["gain"], 0) for row in part)
        share = f"{sum(gained)} ({sum(gained) / max(len(gained), 1):.2f})"
        spent = np.mean([row["completions"] for row in part])
        counts = [len(part), len(gained), share, len(idle), sum(idle), over]
        lines.append([name, *counts, f"{spent:.0f}"])
    return table(head, lines)


def main(
    seeds: tyro.conf.Positional[tuple[int, ...]] = (),
    *,
    rows: Path,
    pairs: int = 5120,
) -> None:
    """Measures the seeds, adds their rows to the file, and prints the table of all its rows.

    Args:
        seeds: of default runs; none: the table alone.
        rows: JSON lines, one a period.
        pairs: drawn at each synchronisation.
    """
    for seed in seeds:
        for row in period_rows(seed, pairs):
            add_row(rows, row)
    print("\n".join(period_table(read_rows(rows))))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
