"""`python -m experiments.run STUDY [options]`: the command line.

python -m experiments.run gsm8k --algorithm dapo --seed 1 --knobs.eps-high 0.3
python -m experiments.run gsm8k --run-dir runs/mine --resume
python -m experiments.run bounds
python -m experiments.run reuse --methods on-policy positives-4
python -m experiments.run plan --model.shape qwen2.5-7b --serve.devices 16
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from ogrpo.cli.main import words_of

USAGE_ERROR = 2


def main(arguments: Sequence[str]) -> int:
    """Runs the study that the arguments name; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else USAGE_ERROR
    study, *options = arguments
    if study not in STUDIES:
        near = difflib.get_close_matches(study, STUDIES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"there is no study {study!r}.{hint}\n\n{_usage()}", file=sys.stderr)
        return USAGE_ERROR
    try:
        return STUDIES[study][1](options)
    except (ValueError, OSError, RuntimeError) as error:
        if (text := words_of(error)) is None:
            raise
        print(text, file=sys.stderr)
        return USAGE_ERROR


def _usage() -> str:
    lines = [f"  {name:<8} {text}" for name, (text, _) in STUDIES.items()]
    return "\n".join(
        [
            "usage: python -m experiments.run STUDY [options]",
            "",
            *lines,
            "",
            "options: STUDY --help",
        ]
    )


def _gsm8k(options: Sequence[str]) -> int:
    # Imported late: --help of the command itself needs no JAX.
    from experiments.gsm8k.main import main as gsm8k

    return gsm8k(options)


def _study(folder: str, kind: str) -> Callable[[Sequence[str]], int]:
    """A study that stands on the grid runner: the class `kind` of experiments/FOLDER/main.py."""

    def run(options: Sequence[str]) -> int:
        from experiments.grid.main import main as grid

        return grid(getattr(import_module(f"experiments.{folder}.main"), kind), options)

    return run


def _rows(options: Sequence[str]) -> int:
    from rich.console import Console

    from experiments.grid.main import keep

    if len(options) != 2 or options[0].startswith("-"):
        print("usage: python -m experiments.run rows STUDY RUN_DIR", file=sys.stderr)
        return USAGE_ERROR
    keep(options[0], Path(options[1]), Console())
    return 0


def _plan(options: Sequence[str]) -> int:
    from rich.console import Console

    from ogrpo.cli.plan import parse
    from ogrpo.planning.main import run

    return run(parse(options, program="python -m experiments.run plan"), Console())


STUDIES: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "gsm8k": ("off-policy GRPO on grade-school mathematics", _gsm8k),
    "bounds": (
        "the proved inequalities along a training run, enumerated and sampled",
        _study("bounds", "BoundsStudy"),
    ),
    "reuse": (
        "how many completions reuse saves, methods compared at equal budgets",
        _study("reuse", "ReuseStudy"),
    ),
    "ablation": (
        "the dials of off-policy GRPO one at a time, as arXiv:2505.22257 has them",
        _study("ablation", "AblationStudy"),
    ),
    "variance": (
        "errors of off-policy estimators against staleness, measured and predicted",
        _study("variance", "VarianceStudy"),
    ),
    "rows": ("puts a study's rows where they are committed: rows STUDY RUN_DIR", _rows),
    "plan": ("what fits, how long a step takes, which schedule keeps both sides busy", _plan),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
