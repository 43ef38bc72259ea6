"""From arguments to a config: a preset or an earlier run's config, changed by the options given."""

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

from ogrpo.cli.config_file import HELP, as_file, read_file, split, with_values
from ogrpo.config.method import listed
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import from_json
from ogrpo.report.run_dir import RunDir
from ogrpo.run.origin import check_never, differences
from ogrpo.run.session import as_json
from ogrpo.setup.presets import ON_FILES, PRESETS, check_preset

HELPS = {"-h", "--help"}
"""Help lists a flag once; where it is given, `--flag` and `--no-flag` are both understood."""


def parse(options: Sequence[str], *, program: str, preset: str) -> TrainConfig:
    """The config that the options ask for; tyro answers unknown ones with the nearest names.

    Args:
      options: as they were typed.
      program: what the command is called.
      preset: where nothing else is named.

    Raises:
      ValueError: a preset, a file or a run to resume is wrong.
      SystemExit: after --help and --print-config, and after an option that is unknown.
    """
    typed = split(options)
    values = {} if typed.file is None else read_file(typed.file)
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset")
    early.add_argument("--run-dir", "--run_dir", type=Path)
    early.add_argument("--data.path", "--data-path", dest="data_path")
    early.add_argument("--resume", action="store_true")
    early.add_argument("--resume-from", "--resume_from")
    known, _ = early.parse_known_args(typed.options)
    goes_on = known.resume or known.resume_from is not None
    resumed = _resumed(known.run_dir, known.preset) if goes_on and known.run_dir else None
    data = values.get("data")
    files = known.data_path or (data.get("path") if isinstance(data, dict) else None)
    name = known.preset or _preset_of(values) or preset
    base = resumed or make_preset(name, on_files=files is not None)
    if typed.file is not None:
        base = with_values(base, values, typed.file)
    config = tyro.cli(
        TrainConfig,
        prog=program,
        args=typed.options,
        default=base,
        description=_description(),
        config=(tyro.conf.FlagCreatePairsOff,) if HELPS & {*typed.options} else (),
    )
    if typed.prints:
        print(as_file(config), end="")
        raise SystemExit(0)
    if resumed is None:
        check_preset(config)
    else:
        check_never(differences(as_json(resumed), as_json(config)))
    return config


def _preset_of(values: dict[str, Any]) -> str | None:
    preset = values.get("preset")
    if not isinstance(preset, str | None):
        raise ValueError(f"preset is {preset!r:.60}: give its name")
    return preset


def make_preset(name: str, *, on_files: bool = False) -> TrainConfig:
    """The preset of this name, for files of a task's own or without; an error names the nearest."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no preset {name!r}.{hint} Presets: {', '.join(PRESETS)}")
    return replace((ON_FILES if on_files else {}).get(name, PRESETS[name])(), preset=name)


def _resumed(path: Path, preset: str | None) -> TrainConfig:
    values = RunDir.reopen(path).read_config()
    if "task" not in values:
        raise ValueError(f"the run in {path} is of another study: check --run-dir")
    config = from_json(TrainConfig, values, str(RunDir(path).config))
    if preset not in (None, config.preset):
        raise ValueError(
            f"the run in {path} was started with --preset {config.preset}: leave out --preset"
        )
    return config


def _description() -> str:
    lines = [f"{name}: {(make.__doc__ or '').splitlines()[0]}" for name, make in PRESETS.items()]
    return "\n\n".join(
        [
            "Off-policy GRPO on a task with verifiable rewards.",
            HELP,
            "Presets:",
            *lines,
            "Algorithms (--algorithm):",
            listed(),
        ]
    )
