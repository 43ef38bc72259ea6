"""A run's folder with records, tokens and a page that no training made."""

import json
import random

from ogrpo.report.run_dir import MetricsWriter, RunDir
from ogrpo.report.run_page import Answer, PageData, Sample, write_report

STEPS = 60
COMPLETION = {
    "prompt": "Ann has 3 apples and buys 4. How many?",
    "tokens": ["3", " +", " 4", " =", " 7", "\n", "####", " 7", "⟨1⟩"],
    "mu": [-0.5, -0.1, None, -0.2, -1.5, -0.1, -0.1, -0.3, -0.1],
    "pi": [-0.4, -0.1, None, -0.2, -0.25, -0.1, -0.1, -0.3, -0.1],
    "advantage": 0.75,
    "removed": [4],
    "reward": 1.0,
    "staleness": 2,
    "length": 9,
    "why": "large ratio",
}


def make_run(path, *, seed=0, step=STEPS, rate=0.001):
    """A folder as a run leaves it, of records that no training made."""
    rng, run = random.Random(seed), RunDir.create(path)
    config = {
        "task": "sums",
        "algorithm": "grpo",
        "preset": "none",
        "seed": seed,
        "schedule": {"steps": STEPS},
        "evaluation": {"split": "test"},
        "optimizer": {"learning_rate": rate},
    }
    run.write_config(config)
    with MetricsWriter(run.metrics) as metrics:
        for n in range(step + 1):
            evaluated = {
                f"pass@1/{how}{end}": 0.2 + n / 100 + shift
                for how in ("sampled", "greedy")
                for end, shift in (("", 0), ("/low", -0.05), ("/high", 0.05))
            }
            names = ("reward", "kl/mu_pi", "ess", "clipped", "entropy", "zero_variance")
            figures = {name: rng.random() for name in names}
            counts = {"step": n, "completions": 64 * n, "updates": n}
            flops = {"flops/update": 1.23e10, "flops/rollout": 1e9}
            seconds = {f"seconds/{phase}": 0.5 for phase in ("rollout", "update", "eval", "sync")}
            known = evaluated if n % 20 == 0 else dict.fromkeys(evaluated)
            metrics.write({**counts, **flops, **seconds, **(figures if n else {}), **known})
    words = {**COMPLETION, "prompt": "Bob sleeps.", "tokens": ["I", " don't", " know"]}
    words |= {"mu": [-1.0] * 3, "pi": [-1.1] * 3, "advantage": -0.5, "removed": [], "reward": 0.0}
    lines = [{"step": n, "completions": [words, COMPLETION]} for n in (20, 40)]
    run.tokens.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = PageData(
        command="ogrpo train <b>",
        method="GRPO",
        counts=[("left out", "3")],
        samples=[Sample("1 + 1 =", "2", Answer("3", False), Answer("2", True))],
        provenance=[("source of ogrpo", "0123abc"), ("SHA-256 of the data", "ab" * 32)],
        defaults={**config, "seed": 0, "optimizer": {"learning_rate": 0.5}},
        seconds=[("model loaded, or made by a warm start", 90.0, 10.0), ("steps", 30.0, 8.0)],
    )
    write_report(run, config, data)
    return run
