"""From arguments to a config: a preset or an earlier run's config, changed by the options given."""

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from ogrpo.report.run_dir import RunDir
from ogrpo.trainer.config import TrainConfig, from_json
from ogrpo.trainer.method import listed
from ogrpo.trainer.presets import DEFAULT, PRESETS, check_preset

PROGRAM = "python -m experiments.run gsm8k"


def parse(options: Sequence[str]) -> TrainConfig:
    """The config that the options ask for; tyro answers unknown ones with the nearest names."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset")
    early.add_argument("--run-dir", "--run_dir", type=Path)
    early.add_argument("--resume", action="store_true")
    known, _ = early.parse_known_args([*options])
    resumed = _resumed(known.run_dir, known.preset) if known.resume and known.run_dir else None
    config = tyro.cli(
        TrainConfig,
        prog=PROGRAM,
        args=[*options],
        default=resumed or _preset(known.preset or DEFAULT),
        description=_description(),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if resumed is None:
        check_preset(config)
    elif config.lora != resumed.lora:
        raise ValueError(
            f"the run in {known.run_dir} was started with {resumed.lora}, which cannot change:"
            " leave out --lora options"
        )
    if resumed is not None and config.evaluation.split != resumed.evaluation.split:
        raise ValueError(
            f"the run in {known.run_dir} is evaluated on --evaluation.split "
            f"{resumed.evaluation.split}, and its scores would not compare: leave the option out, "
            "or start another run"
        )
    return config


def _preset(name: str) -> TrainConfig:
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no preset {name!r}.{hint} Presets: {', '.join(PRESETS)}")
    return replace(PRESETS[name](), preset=name)


def _resumed(path: Path, preset: str | None) -> TrainConfig:
    values = RunDir.reopen(path).read_config()
    if values.pop("study") != "gsm8k":
        raise ValueError(f"the run in {path} is of another study: check --run-dir")
    config = from_json(TrainConfig, values)
    if preset not in (None, config.preset):
        raise ValueError(
            f"the run in {path} was started with --preset {config.preset}: leave out --preset"
        )
    return config


def _description() -> str:
    lines = [f"{name}: {(make.__doc__ or '').splitlines()[0]}" for name, make in PRESETS.items()]
    return "\n\n".join(
        [
            "Off-policy GRPO on grade-school mathematics.",
            "Presets:",
            *lines,
            "Algorithms (--algorithm):",
            listed(),
        ]
    )
