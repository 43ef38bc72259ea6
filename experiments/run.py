"""`python -m experiments.run STUDY [options]`: the command line.

python -m experiments.run gsm8k --algorithm dapo --seed 1 --knobs.eps-high 0.3
python -m experiments.run gsm8k --run-dir runs/mine --resume
python -m experiments.run bounds --quick
python -m experiments.run rec --jobs 2
python -m experiments.run rec --from-rows
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ogrpo.cli.main import USAGE_ERROR, replace_unprintable, report_error
from ogrpo.system.terminal import nearest

if TYPE_CHECKING:
    from experiments.grid.study import Study


def main(arguments: Sequence[str]) -> int:
    """Runs the study that the arguments name; returns the exit code."""
    replace_unprintable()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else USAGE_ERROR
    study, *options = arguments
    if study not in STUDIES:
        hint = nearest(study, STUDIES)
        print(f"there is no study {study!r}.{hint}\n\n{_usage()}", file=sys.stderr)
        return USAGE_ERROR
    try:
        return STUDIES[study][1](options)
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error)


def _usage() -> str:
    widest = max(map(len, STUDIES))
    lines = "\n".join(f"  {name:<{widest}} {text}" for name, (text, _) in STUDIES.items())
    return f"usage: python -m experiments.run STUDY [options]\n\n{lines}\n\noptions: STUDY --help"


def _gsm8k(options: Sequence[str]) -> int:
    from ogrpo.cli.commands import train

    return train(options, program="python -m experiments.run gsm8k", preset="default")


def study_of(name: str) -> "type[Study]":
    """Returns the class of a grid's study: MyStudy in experiments/my/study.py."""
    folder = name.replace("-", "_")
    kind = folder.title().replace("_", "") + "Study"
    return getattr(import_module(f"experiments.{folder}.study"), kind)


def _grid(name: str, options: Sequence[str]) -> int:
    from experiments.grid.main import main as grid

    return grid(study_of(name), options)


def _rows(options: Sequence[str], *, back: bool = False) -> int:
    from rich.console import Console

    from experiments.grid.main import keep, restore

    if len(options) != 2 or options[0].startswith("-"):
        name = "cells" if back else "rows"
        print(f"usage: python -m experiments.run {name} STUDY RUN_DIR", file=sys.stderr)
        return USAGE_ERROR
    (restore if back else keep)(options[0], Path(options[1]), Console())
    return 0


GRIDS = {
    "presets": "what each preset of the default task reaches",
    "bounds": "the proved inequalities along a training run, enumerated and sampled",
    "ladder": "how few completions do, with reuse and without, on the default task and on chains",
    "rec": "off-policy REINFORCE, GRPO and their kin on fresh, stale and fixed samples",
    "ablation": "the dials of off-policy GRPO one at a time, as arXiv:2505.22257 has them",
    "clip-vs-is": "clips and importance weights, alone, together, and weights in trust regions",
    "noise": "a share of the rewards flipped: which method amplifies it?",
    "boundary": "how stale samples may be, by scheme and learning rate, and what warns first",
    "variance": "errors of off-policy estimators against staleness, measured and predicted",
    "operating-points": "which buffer, sampler, replay ratio and controller for which budget",
    "real": "the claims of the small decoder on SmolLM2-135M, by a protocol written before",
    "single-rollout": "one completion a prompt with baselines that need no siblings, beside groups",
    "offline": "completions drawn once: which methods learn from them, how fast, and which fall",
    "centering": "score centring on stale samples, over few and over all tokens",
    "step-rewards": "a reward for each line of a solution beside the outcome's, fresh and stale",
}
"""Studies of docs/studies.md: each takes --quick, --jobs, --run-dir, --from-rows and --base.*."""

STUDIES: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "gsm8k": ("off-policy GRPO on generated word problems; on GSM8K with --data.path", _gsm8k),
    **{name: (text, partial(_grid, name)) for name, text in GRIDS.items()},
    "rows": ("puts a study's rows where they are committed: rows STUDY RUN_DIR", _rows),
    "cells": (
        "puts committed rows into a run's folder, to go on from them: cells STUDY RUN_DIR",
        partial(_rows, back=True),
    ),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
