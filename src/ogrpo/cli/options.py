"""Arguments to a config: a preset, a file or an earlier run's config, changed by the options.

`--config FILE` reads YAML, which `--print-config` writes, by the names of the command line:
`optimizer.learning-rate` is `learning-rate` or `learning_rate` of the table `optimizer`. What is
typed comes after what the file says.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
import yaml
from annotated_types import Ge

from ogrpo.config.rollout import Rollout, check_servers
from ogrpo.config.train import Data, Evaluation, Judging, Model, TrainConfig
from ogrpo.rollout.options import ServerOptions
from ogrpo.setup.presets import PRESETS, check_preset, make_preset
from ogrpo.system.files import DEEPEST, read_text
from ogrpo.system.values import (
    INERT,
    Conditions,
    Count,
    OptionalCount,
    Seed,
    changed,
    check,
    check_conditions,
    from_json,
    metavar,
    to_json,
)

MOST_BYTES = 1 << 20


def read_file(path: Path) -> dict[str, Any]:
    """Reads the tables of a file.

    Raises:
      ValueError: it is not there, is no YAML, or holds no table; it is larger or nested deeper than
        any options are, or says two things of one name.
    """
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file")
    text = read_text(path, MOST_BYTES)
    try:
        values = _read_yaml(text)
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        raise ValueError(f"--config {path} cannot be read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"--config {path} is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} holds no options: give names and values")
    return values


class _Unique(yaml.SafeLoader):
    """YAML's plain values, each name said once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns a mapping, whose later names do not quietly replace earlier ones."""
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        spelled = [str(name).replace("-", "_") for name in names]
        for name, spelling in zip(names, spelled, strict=True):
            if not isinstance(name, str | int | float | None):
                raise ValueError(f"a name in it is {name!r:.60}: give a text")
            if spelled.count(spelling) > 1:
                raise ValueError(f"it has {name!r:.60} twice in one table: keep one")
        return super().construct_mapping(node, deep)


yaml.add_implicit_resolver(  # YAML 1.1, which PyYAML reads, takes 1e-4 for a text
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)[eE][-+][0-9]+\Z"),
    [*"-+.0123456789"],
    Loader=_Unique,
    Dumper=yaml.SafeDumper,
)


def _read_yaml(text: str) -> Any:
    """Reads a YAML text without references, by which a short one can mean a huge one."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has a reference (*{event.anchor}): write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return yaml.load(text, Loader=_Unique)


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
      base: the config that they change, from the options and the values of `--config`.
      title: the first line of the help.
      more: the last paragraphs of its description.

    Raises:
      ValueError: the file or a value in it is wrong.
      SystemExit: after --help and --print-config, and after an option that is unknown.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config", type=Path, action="append", default=[])
    early.add_argument("--print-config", "--print_config", action="store_true")
    typed, rest = early.parse_known_args([*options])
    if len(typed.config) > 1:
        raise ValueError(f"--config is given {len(typed.config)} times: write one file of them")
    values = read_file(typed.config[0]) if typed.config else {}
    config = changed(base(rest, values), values, f"--config {''.join(map(str, typed.config))}: ")
    description = "\n\n".join(filter(None, (title, HELP, more)))
    config = tyro.cli(
        type(config), prog=program, args=rest, default=config, description=description
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
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    parser.add_argument("--run-dir", "--run_dir", type=Path)
    parser.add_argument("--data.path", "--data-path", dest="data_path")
    parser.add_argument("--model.path", "--model-path", dest="model_path")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--resume-from", "--resume_from")
    early = parser.parse_known_args([*options])[0]  # they say which config the others change
    goes_on = early.run_dir and (early.resume or early.resume_from is not None)
    resumed = config_of_run(early.run_dir, early.preset) if goes_on else None

    def base(_: Sequence[str], values: Mapping[str, Any]) -> TrainConfig:
        if resumed is not None:
            return resumed
        parts = {name: values.get(name) for name in ("data", "model")}
        paths = {name: x.get("path") for name, x in parts.items() if isinstance(x, dict)}
        files = early.data_path or paths.get("data")
        weights = early.model_path or paths.get("model")
        named = early.preset or values.get("preset")
        if values.get("preset", named) != named:
            raise ValueError(
                f"--preset is {named}, and the file's preset {values['preset']}, whose options it"
                " has: leave one of the two out"
            )
        name = named or preset
        if weights and not named and preset == "default":
            raise ValueError(
                f"--model.path is {weights}, and the preset `default` has the learning"
                " rate of a decoder that it makes: name --preset none, or one of a real model"
            )
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
        from ogrpo.run.resuming import check_never, differences
        from ogrpo.run.session import as_json

        check_never(differences(as_json(resumed), as_json(config)))
    else:
        if config.resume or config.resume_from is not None:
            raise ValueError(
                "--resume needs the --run-dir of the run, both typed and not in a file"
            )
        check_preset(config)
    return config


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


EFFECTIVE_IF: Conditions = (
    ("reward.flip", lambda _: False, "held-out answers are judged as they are; leave it out"),
    ("data.prompt-length", lambda _: False, "every problem is asked, however long; leave it out"),
    ("data.limit", lambda _: False, "it counts training problems; give --problems"),
    ("model.compute-dtype model.remat", lambda _: False, "nothing is updated; leave it out"),
)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The model that is evaluated, the problems, and how answers are drawn, judged and kept."""

    samples: OptionalCount = None
    """Answers to each problem; the task's protocol says it where left out."""
    temperature: Annotated[float | None, Ge(0), metavar("{None}|FLOAT>=0")] = None
    """0 for the most likely token, greedily; the task's protocol says it where left out."""
    max_tokens: OptionalCount = None
    """Tokens of an answer at most; the task's protocol says it where left out."""
    batch: Count = 32
    """Problems that the engine is asked for at once."""
    concurrent: Count = 1
    """Batches that are sampled at once: 2 or 3 keep servers busy while a batch's longest answers
    come."""
    judges: Count = 8
    """Problems that are judged at once."""
    seed: Seed = 0
    """Of the draws."""
    ks: tuple[int, ...] = ()
    """The k of Pass@k and maj@k; by default the powers of two up to the number of samples, and that
    number."""
    by: str | None = None
    """The reward that says right or wrong; by default the one that the task names, or the only one
    that is 0 or 1."""
    output: Path | None = None
    """Where answers are written, one a line; a new file."""
    task: str = "gsm8k"
    """The name of a task (docs/tasks.md), or a file of your own, whose held-out part is taken."""
    rewards: tuple[str, ...] = ()
    """Functions that judge answers, as FILE.py:NAME or MODULE:NAME; default: the task's own."""
    problems: OptionalCount = None
    """Use only the first so many held-out problems."""
    split: Literal["validation", "test"] = "test"
    """Which held-out problems, where the task has both."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    reward: Judging = field(default_factory=Judging)
    servers: ServerOptions = field(default_factory=ServerOptions)

    def __post_init__(self) -> None:
        check(self)
        if 0 < (self.temperature or 0) < 0.01:
            raise ValueError(f"temperature is {self.temperature}: give 0, or at least 0.01")
        check_servers(self.servers, "servers.")
        check_conditions(self, EFFECTIVE_IF, clause=INERT)

    @property
    def as_train(self) -> TrainConfig:
        """The same options where a trainer reads them."""
        return TrainConfig(
            task=self.task,
            rewards=self.rewards,
            data=self.data,
            model=self.model,
            reward=self.reward,
            rollout=Rollout(**vars(self.servers)),
            evaluation=Evaluation(split=self.split, prompts=self.problems or Evaluation.prompts),
        )


def parse_eval(options: Sequence[str]) -> EvalConfig:
    """Returns the config of an evaluation."""
    return parse_config(
        options,
        program="ogrpo eval",
        base=lambda _, __: EvalConfig(),
        title="How often a model is right on held-out problems.",
    )
