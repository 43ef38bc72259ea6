"""Measures what old completions save as drafts of the current policy, by how old they are.

    taskset -c 1 python -m benchmarks.drafts 0 1 2 --rows rows.jsonl    # a few minutes a seed
    python -m benchmarks.drafts --rows rows.jsonl                       # the tables of these rows

Trains the default preset and keeps its weights along the way. At the steps 30, 60 and 120 the
batches of a step are drawn anew and from drafts 1 to 20 steps old, each call twice: the second is
timed, so that compiling is left out. Drafts are fresh draws of the old weights, or those of the run
that the weights since were trained on.

The surplus of a completion is sum_t log p(y_t) + H(p_t), of mean 0 under p: a law that leans
towards what p makes likely has more.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks.rows import Row, add_row, read_rows
from experiments.grid.train import Bench
from ogrpo.batch import Batch, tokens_only
from ogrpo.config.train import Certification
from ogrpo.data.batching import fill, length_mask, pad_groups
from ogrpo.loop import Parts, start, stream_seed, train
from ogrpo.loop.collect import request_at
from ogrpo.policy import (
    DecoderConfig,
    Params,
    Sampled,
    completion_log_probs_and_entropy,
    sample,
)
from ogrpo.policy.drafts import Continued, continue_drafts
from ogrpo.protocol import Group
from ogrpo.setup.presets import default

STEPS = (30, 60, 120)
LAGS = (1, 2, 5, 10, 20)
BATCHES = 10
_scores = jax.jit(completion_log_probs_and_entropy, static_argnums=1)


class Recorder:
    """An engine that keeps what it drew."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.groups = engine, defaultdict[int, list[Group]](list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def generate(self, *arguments: Any) -> list[Group]:
        """Draws groups, and keeps them by the version of their weights."""
        groups = self.engine.generate(*arguments)
        self.groups[self.engine.version] += groups
        return groups


class Run(NamedTuple):
    """A default run: its weights by step, and its own draws by version."""

    parts: Parts
    decoder: DecoderConfig
    eos_id: int
    weights: dict[int, Params]
    groups: dict[int, list[Group]]


def run(bench: Bench, seed: int) -> Run:
    """Trains the default preset up to the last step that is measured."""
    config = replace(default(), seed=seed, certificate=Certification())
    kept = {step - lag for step in STEPS for lag in (0, *LAGS)}
    with bench.parts(config) as (_, parts, first):
        prepared, recorder = bench.prepare(config), Recorder(parts.collection.engine)
        recording = replace(parts, collection=replace(parts.collection, engine=recorder))
        weights: dict[int, Params] = {}
        for state, _ in train(start(first, recording), recording):
            if state.step in kept:
                weights[state.step] = jax.tree.map(np.asarray, state.train.whole())
            if state.step == max(STEPS):
                break
    eos_id = prepared.tokenizer.eos_id
    return Run(parts, prepared.decoder, eos_id, weights, recorder.groups)


def timed(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, float]:
    """Returns what a call gives the second time, and its CPU time in seconds."""
    jax.block_until_ready(jax.tree.leaves(call(*arguments, **options)))
    begin = time.process_time()
    out = call(*arguments, **options)
    jax.block_until_ready(jax.tree.leaves(out))
    return out, time.process_time() - begin


def measure(of: Run, step: int, lag: int, source: str) -> Row:
    """Draws batches from drafts of one age, and anew."""
    parts, sampling = of.parts, of.parts.collection.sampling
    width, size = parts.prompts.length, parts.schedule.prompts
    how: Any = {"temperature": sampling.temperature, "eos_id": of.eos_id}
    new, old = (jax.device_put(of.weights[n]) for n in (step, step - lag))

    def key_of(number: int) -> jax.Array:
        return jax.random.key(stream_seed(parts.seed, f"drafts {step} {lag}", number))

    def draw(params: Params, ids: Any, mask: Any, number: int) -> Sampled:
        return sample(
            params,
            of.decoder,
            ids,
            mask,
            key_of(number),
            greedy=False,
            group_size=sampling.group_size,
            max_tokens=sampling.max_tokens,
            **how,
        )

    def batch_of(ids: Any, mask: Any, samples: Sampled) -> Batch[jax.Array]:
        return tokens_only(
            prompt_ids=ids,
            prompt_mask=mask,
            completion_ids=samples.token_ids,
            completion_mask=samples.mask,
        )

    def drafts_of(number: int) -> Batch[Any]:
        if source == "trained on":
            groups = of.groups[step - lag][number * size : (number + 1) * size]
            rewards = np.zeros((size, sampling.group_size), np.float32)
            return pad_groups(groups, width, sampling.max_tokens, rewards=rewards)
        prompts = request_at(parts, 10_000 + step + number).prompts
        mask = length_mask("prompt", np.array([*map(len, prompts)]), width)
        ids = fill(mask, np.concatenate(prompts), 0)
        return batch_of(ids, mask, draw(old, ids, mask, 2 * number))

    totals, surpluses = defaultdict[str, float](float), []
    for number in range(BATCHES):
        drafts = jax.tree.map(jnp.asarray, drafts_of(number))
        prompts = drafts.prompt_ids, drafts.prompt_mask
        key = key_of(2 * number + 1)
        out: Continued
        out, seconds = timed(continue_drafts, new, of.decoder, old, drafts, key, **how)
        anew, seconds_anew = timed(draw, new, *prompts, 2 * number + 1)
        lengths = np.asarray(drafts.completion_mask).sum(-1)
        values = {
            "kept": np.asarray(out.kept).sum() / lengths.sum(),
            "whole": (np.asarray(out.kept) == lengths).mean(),
            "steps": out.steps,
            "steps anew": np.asarray(anew.mask).sum(-1).max() - 1,
            "seconds": seconds,
            "seconds anew": seconds_anew,
        }
        for name, value in values.items():
            totals[name] += float(value) / BATCHES
        whole = batch_of(*prompts, out.samples)
        scores = _scores(new, of.decoder, whole, sampling.temperature)
        surpluses.append(np.asarray(scores.log_probs + scores.entropy).sum(-1).ravel())
    surplus = np.concatenate(surpluses)
    error = surplus.std(ddof=1) / np.sqrt(surplus.size)
    row = {**totals, "surplus": surplus.mean(), "error": error}
    named = {"step": step, "lag": lag, "drafts": source, "completions": surplus.size}
    return named | {name: float(f"{value:.5g}") for name, value in row.items()}


def table(rows: Sequence[Row]) -> str:
    """Returns the means by age and kind of drafts, each row of the file weighing the same."""
    lines = [
        "| drafts | steps old | tokens kept | drafts kept whole | decoding steps, anew |"
        " CPU ms a batch, anew | surplus, nats |",
        "|" + "---|" * 7,
    ]
    for source in ("fresh", "trained on"):
        for lag in LAGS:
            part = [r for r in rows if (r["drafts"], r["lag"]) == (source, lag)]
            if not part:
                continue
            mean = {
                name: np.mean([row[name] for row in part]) for name in part[0] if name != "drafts"
            }
            error = np.sqrt(np.mean([row["error"] ** 2 for row in part]) / len(part))
            lines.append(
                f"| {source} | {lag} | {mean['kept']:.2f} | {mean['whole']:.2f} |"
                f" {mean['steps']:.1f}, {mean['steps anew']:.1f} | {1e3 * mean['seconds']:.0f},"
                f" {1e3 * mean['seconds anew']:.0f} |"
                f" {mean['surplus']:+.3f} ± {1.96 * error:.3f} |"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the seeds, adds their rows to the file, and prints the table of all its rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", type=int, nargs="*", help="of default runs; none: the table alone")
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(Path(made), Console(quiet=True))
        for seed in options.seeds:
            of = run(bench, seed)
            for step in STEPS:
                cells = [(lag, "fresh") for lag in LAGS]
                cells += [(lag, "trained on") for lag in LAGS if of.groups.get(step - lag)]
                for lag, source in cells:
                    row = {"seed": seed, **measure(of, step, lag, source)}
                    add_row(options.rows, row)
        bench.close()
    print(table(read_rows(options.rows)))


if __name__ == "__main__":
    main()
