"""Arguments to a config: a preset, a file or an earlier run's config, changed by the options.

`--config FILE` reads YAML, which `--print-config` writes. What is typed comes after what the
file says.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import tyro
import yaml

from ogrpo.cli.config_file import read_file
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import changed, from_json, to_json
from ogrpo.setup.presets import ON_FILES, PRESETS, check_preset
from ogrpo.system.terminal import nearest

Config = TypeVar("Config")
HELP = """\
--config FILE takes options from a YAML file, by the same names; what is typed comes after it.
--print-config prints all options as such a file, and does nothing else."""
ALGORITHMS = "Algorithms (--algorithm): --algorithms prints each with a line of what it is."


def parse_config(
    options: Sequence[str],
    *,
    program: str,
    base: Callable[[Sequence[str], Mapping[str, Any]], Config],
    title: str,
    more: str = "",
) -> Config:
    """Returns the config of the options; tyro answers unknown ones with the nearest names.

    Args:
      options: as they were typed.
      program: what the command is called.
      base: the config that they change, from the options and the values of `--config`.
      title: the first line of the help.
      more: the last paragraphs of its description.

    Raises:
      ValueError: the file or a value in it is wrong.
      SystemExit: after --help and --print-config, and after an option that is unknown.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config", type=Path)
    early.add_argument("--print-config", "--print_config", action="store_true")
    typed, rest = early.parse_known_args([*options])
    values = {} if typed.config is None else read_file(typed.config)
    config = changed(base(rest, values), values, f"--config {typed.config}: ")
    # Help lists a flag once; elsewhere `--flag` and `--no-flag` are both understood.
    once = (tyro.conf.FlagCreatePairsOff,) if {"-h", "--help"} & {*rest} else ()
    description = "\n\n".join(filter(None, (title, HELP, more)))
    config = tyro.cli(
        type(config), prog=program, args=rest, default=config, description=description, config=once
    )
    if typed.print_config:
        print(as_file(config), end="")
        raise SystemExit(0)
    return config


def as_file(config: Any) -> str:
    """Returns all options as a YAML file."""
    return yaml.safe_dump(to_json(config), sort_keys=False)


def parse(options: Sequence[str], *, program: str, preset: str) -> TrainConfig:
    """Returns the config of a training run; `preset` holds where nothing else is named.

    Raises:
      ValueError: a preset, a file or a run to resume is wrong.
      SystemExit: as `parse_config`, and after --algorithms.
    """
    if "--algorithms" in options:
        from ogrpo.config.method import listed

        print(listed())
        raise SystemExit(0)
    early = _read_early(options)
    goes_on = early.run_dir and (early.resume or early.resume_from is not None)
    resumed = config_of_run(early.run_dir, early.preset) if goes_on else None

    def base(_: Sequence[str], values: Mapping[str, Any]) -> TrainConfig:
        if resumed is not None:
            return resumed
        data = values.get("data")
        files = early.data_path or (data.get("path") if isinstance(data, dict) else None)
        name = early.preset or values.get("preset") or preset
        if not isinstance(name, str):
            raise ValueError(f"preset is {name!r:.60}: give its name")
        return make_preset(name, on_files=files is not None)

    presets = [f"{name}: {(make.__doc__ or '').splitlines()[0]}" for name, make in PRESETS.items()]
    config = parse_config(
        options,
        program=program,
        base=base,
        title="Off-policy GRPO on a task with verifiable rewards.",
        more="\n\n".join(["Presets:", *presets, ALGORITHMS]),
    )
    if resumed is not None:
        from ogrpo.run.origin import check_never, differences
        from ogrpo.run.session import as_json

        check_never(differences(as_json(resumed), as_json(config)))
    else:
        check_preset(config)
    return config


def _read_early(options: Sequence[str]) -> argparse.Namespace:
    """Returns the options that say which config the others change."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset")
    early.add_argument("--run-dir", "--run_dir", type=Path)
    early.add_argument("--data.path", "--data-path", dest="data_path")
    early.add_argument("--resume", action="store_true")
    early.add_argument("--resume-from", "--resume_from")
    return early.parse_known_args([*options])[0]


def make_preset(name: str, *, on_files: bool = False) -> TrainConfig:
    """Returns the preset of this name, for files of a task's own or without.

    Raises:
      ValueError: there is none; names the nearest.
    """
    if name not in PRESETS:
        hint = nearest(name, PRESETS)
        raise ValueError(f"there is no preset {name!r}.{hint} Presets: {', '.join(PRESETS)}")
    return replace((ON_FILES if on_files else {}).get(name, PRESETS[name])(), preset=name)


def config_of_run(path: Path, preset: str | None) -> TrainConfig:
    """Returns the config that a run in a folder was started with.

    Raises:
      ValueError: it is damaged, of another study, or of another preset than this.
    """
    from ogrpo.report.run_dir import RunDir

    values = RunDir.reopen(path).read_config()
    if "task" not in values:
        raise ValueError(f"the run in {path} is of another study: check --run-dir")
    config = from_json(TrainConfig, values, str(RunDir(path).config))
    if preset not in (None, config.preset):
        raise ValueError(
            f"the run in {path} was started with --preset {config.preset}: leave out --preset"
        )
    return config
