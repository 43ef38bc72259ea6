"""Options of data, model, rewards and evaluation, and what of them the task takes."""

from dataclasses import dataclass

from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import INERT, Table, check_conditions, require
from ogrpo.core.algorithms import STEPS
from ogrpo.setup.find_task import is_generated, takes
from ogrpo.tasks import Task
from ogrpo.tasks.rows import is_rows


@dataclass(frozen=True)
class Sources:
    """The sources of a run: its problems and its weights."""

    config: TrainConfig
    named: bool
    """Whether the config names the task; otherwise it is a `Task` of Python's."""

    @property
    def file(self) -> bool:
        """Whether the task is a file of rows."""
        return self.named and is_rows(self.config.task)

    @property
    def generated(self) -> bool:
        """Whether the problems are made here."""
        return self.named and is_generated(self.config)

    @property
    def official(self) -> bool:
        """Whether the task is one of the literature, read from its files."""
        return self.named and not self.file and not self.generated

    @property
    def elsewhere(self) -> str | None:
        """The task that is evaluated on, where that is another."""
        return self.config.evaluation.task

    @property
    def pretrained(self) -> bool:
        """Whether the weights are read from a folder or a file."""
        return self.config.model.path is not None

    @property
    def made_here(self) -> bool:
        """Whether the model is made here."""
        return not self.pretrained and self.config.model.random == "none"

    @property
    def imitates(self) -> bool:
        """Whether imitation comes before RL."""
        return self.made_here or self.config.warm_start.solutions

    @property
    def has_splits(self) -> bool:
        """Whether what is evaluated on has a validation and a test part."""
        task = self.elsewhere or self.config.task
        if self.elsewhere is None and (self.generated or not self.named):
            return self.generated
        return not is_rows(task) and takes(task, "split")

    def takes(self, option: str) -> bool:
        """Whether the reader of the official task has an option."""
        return self.official and takes(self.config.task, option)


ACTS: Table = (
    (
        "data.path",
        lambda s: s.official or (s.generated and s.config.task == "gsm8k"),
        "it is where a named task's files are (docs/tasks.md)",
    ),
    (
        "data.train data.seed",
        lambda s: s.generated or s.takes("seed"),
        "the problems are not generated here",
    ),
    (
        "data.limit",
        lambda s: s.generated or s.file or s.takes("limit"),
        "the task has no training problems to choose from",
    ),
    (
        "data.prompt-column data.solution-column",
        lambda s: s.file or is_rows(s.elsewhere or ""),
        "give --task a file whose columns they are",
    ),
    (
        "data.heldout",
        lambda s: (s.file or s.takes("heldout")) and s.elsewhere is None,
        "the task is evaluated on prompts of its own",
    ),
    (
        "data.prompt",
        lambda s: not s.generated or s.pretrained,
        "generated problems have one prompt format",
    ),
    (
        "data.prompt",
        lambda s: not s.official or s.takes("prompt"),
        "{c.task} has prompts of its own",
    ),
    ("rewards", lambda s: s.named, "the task brings its own"),
    (
        "evaluation.path",
        lambda s: s.elsewhere is not None and not is_rows(s.elsewhere),
        "it is where the files of --evaluation.task are, a task by its name",
    ),
    ("evaluation.engine", lambda s: s.config.rollout.url, "give --rollout.url"),
    (
        "evaluation.split",
        lambda s: s.has_splits,
        "what is evaluated on has no such split; give --data.heldout or --evaluation.task",
    ),
    (
        "warm-start.solutions",
        lambda s: s.pretrained,
        "it is for given weights: one that is made here imitates anyway (--model.path)",
    ),
    (
        "warm-start.steps warm-start.batch warm-start.learning-rate warm-start.cache"
        " warm-start.retrain warm-start.seed",
        lambda s: s.imitates,
        "the model's weights are given, and --warm-start.solutions is not",
    ),
    (
        "warm-start.save-every",
        lambda s: s.imitates and s.pretrained,
        "given weights alone have checkpoints of their imitation (--warm-start.solutions)",
    ),
    (
        "warm-start.problems warm-start.demonstrations",
        lambda s: s.made_here and s.generated,
        "the task's own worked solutions are imitated",
    ),
    (
        "warm-start.teacher",
        lambda s: s.made_here and s.generated and s.config.task != "chains",
        "a careless teacher shows generated problems alone (and not chains), to a model without a"
        " path",
    ),
    (
        "model.tokenizer-size",
        lambda s: not s.pretrained and not s.generated,
        "a tokenizer is trained on the task's text where no model is given, of generated problems"
        " none",
    ),
)
"""Options that act on some sources alone."""


def check_sources(config: TrainConfig, task: Task | None = None) -> None:
    """Holds options of data, model, rewards and evaluation to what they have to act on.

    Args:
      config: of the run.
      task: in place of the one that the config names.

    Raises:
      ValueError: names the option, and what it needs.
    """
    sources = Sources(config, task is None)
    require(
        STEPS not in algorithm(config).reads or (sources.generated and config.task != "chains"),
        f"{algorithm(config).title({})} reads rewards of steps, which the task has none of: the"
        " lines of problems that are made here are judged (--task arithmetic)",
    )
    check_conditions(config, ACTS, clause=INERT, subject=sources)
    weights, count = config.reward.weights, len(config.rewards)
    require(
        not weights or len(weights) == count,
        f"reward.weights has {len(weights)} weights for {count} rewards: give one for each of"
        " --rewards",
    )
