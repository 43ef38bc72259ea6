"""The configuration of a run: frozen dataclasses that the command line fills in.

Each option has one meaning and one place. A `TrainConfig` is held to its fields' annotations and
to the tables of `ogrpo.config.conditions` where it is made, so that a wrong value is refused before
anything is computed.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar, runtime_checkable

import tyro
from annotated_types import Ge, Interval

from ogrpo.config.conditions import EFFECTIVE_IF, VALID_IF
from ogrpo.config.rollout import Rollout, check_servers
from ogrpo.config.schedule import Reuse, Schedule, also
from ogrpo.config.update import Kernels, Knobs, Lora, Mesh, Optimizer, Override, Processes, Region
from ogrpo.system.values import (
    INERT,
    Count,
    Index,
    OptionalChance,
    OptionalCount,
    OptionalIndex,
    OptionalPositive,
    OptionalSeed,
    Positive,
    Seed,
    Temperature,
    check,
    check_conditions,
    metavar,
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The problems: files, or a generator."""

    path: str | None = None
    """The folder or file of a named task (docs/tasks.md), or a hub name when `datasets` is
    installed. Without it, gsm8k is problems of the same format that are generated here."""
    prompt_column: str | None = None
    """The column of a file's prompts; default: found by its name."""
    solution_column: str | None = None
    """The column of a file's worked solutions, which a model that is made here imitates first;
    default: solution, where there is one."""
    heldout: str | None = None
    """What of a file is held out: another file, a share such as 0.1, or a number of prompts;
    default: a tenth, 512 at most. The same lines in every run."""
    system: str | None = None
    """An opening system turn, where the model has a chat template."""
    chat: tuple[str, ...] = ()
    """Variables of the chat template as NAME=VALUE, such as enable_thinking=false."""
    prompt_length: OptionalCount = None
    """Longest prompt in tokens; longer ones are left out, counted and shown. Default: as the task
    says, or its longest prompt."""
    prompt: str | None = None
    """What is put to the model, `{question}` standing for the question; default: as the task has
    it."""
    train: Count = 8000
    """Problems to generate for training."""
    seed: Seed = 0
    """Seed of the generated problems; apart from --seed, so that runs share their problems."""
    limit: OptionalCount = None
    """Use only the first so many training problems."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The policy's weights."""

    path: Path | None = None
    """A Hugging Face folder (config.json, *.safetensors, tokenizer.json), a GGUF file, or a known
    name such as smollm2-135m, whose weights are fetched once (docs/models.md). Training without it
    makes a small Qwen2 decoder, which first imitates; evaluation needs it."""
    random: Literal["none", "tiny", "qwen2.5-0.5b"] = "none"
    """Random weights of a known shape instead: proves a path, learns nothing quickly."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters, and of the computation without --model.compute-dtype; log-probs are always
    float32."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Of the update's forward and backward pass; bfloat16 over float32 parameters keeps steps that
    are too small for bfloat16. The sampler computes in `dtype`. Default: `dtype`."""
    tokenizer_size: Annotated[int, Ge(258), metavar("INT>=258")] = 512
    """Vocabulary of the tokenizer trained on the problems of a data path without a model."""
    remat: Literal["none", "products", "full"] = "products"
    """What the backward pass computes again: nothing, all but the results of a layer's matrix
    products, or whole layers. Later ones take less memory, and `full` takes more time."""


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Imitation before RL: of a careless teacher or of the task's worked solutions."""

    steps: Count = 1200
    """Updates of imitation."""
    batch: Count = 32
    """Problems in a batch."""
    learning_rate: OptionalPositive = None
    """Peak of a cosine decay to 0. Default: 5e-3 of a model that is made here, 2e-5 of given
    weights."""
    problems: Count = 16_000
    """Problems that the teacher answers; none of them is held out."""
    demonstrations: Count = 4
    """Answers of the teacher to each problem; they share its prompt, so that more cost little."""
    cache: bool = True
    """Keep the warm-started weights in the user's cache folder, by content hash."""
    retrain: bool = False
    """Imitate here even where the package comes with the result, or the cache has it."""
    seed: OptionalSeed = None
    """Of the demonstrations, their order and the first weights; default: --seed. Given, runs of
    other seeds begin with the same weights."""
    solutions: bool = False
    """Imitate the task's worked solutions where weights are given, too (--model.path): packed
    batches, a validation loss, checkpoints in the user's cache folder to go on from. A model
    without a path imitates anyway."""
    save_every: Count = 50
    """With given weights: steps between two checkpoints, each with a validation loss."""


@dataclass(frozen=True, kw_only=True)
class Judging:
    """Judging of completions."""

    extraction: Literal["marker", "boxed", "free", "last"] | None = None
    """Where the answer stands: the one number after the last ####, the last \\boxed{...}, wherever
    math-verify finds it (boxed first), or the last number. Default: as the task has it; of a file,
    marker."""
    seconds: Positive = 2.0
    """Time bound of one comparison of answers in CPU seconds; an overrun scores 0 and is
    counted."""
    processes: Count = 2
    """Processes in which rewards of your own run, and comparisons that may take long."""
    call_seconds: Positive = 30.0
    """Time bound of one call of a reward of your own: a process that overruns is killed."""
    memory_gib: Positive = 4.0
    """Memory bound of each of these processes."""
    weights: tuple[float, ...] = ()
    """Of the rewards in their sum, in the order of --rewards; default: 1 each."""
    flip: Annotated[float, Interval(ge=0, le=0.5), metavar("FLOAT in [0, 0.5]")] = 0.0
    """Chance that the reward of a training completion, 0 or 1, is flipped: noise on purpose,
    drawn by the run's seed and counted. Held-out answers are judged as they are."""


Draws = Literal["fifo", "uniform", "fresh", "unused", "advantage", "positives", "stratified"]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The replay buffer, where groups wait between being collected and being used."""

    groups: OptionalCount = None
    """Groups held at most; default: one batch, so that each step uses what it collected, or all
    that the warm-up collects."""
    sampler: Draws = "fifo"
    """Which groups a batch is drawn from: in order of arrival, at random, or at random with
    preference for fresh ones, for little used ones, for large advantages, for rare successes, or
    evenly over problems."""
    refuse_zero_variance: bool = False
    """Leave groups of equal rewards out of the buffer: they are counted and teach nothing."""
    refuse_failures: bool = False
    """Leave groups without a reward above 0 out of the buffer, of one completion too: they are
    counted. A method that imitates successes learns nothing of them; one that holds a completion
    against other prompts would no longer see that those failed."""
    max_staleness: OptionalIndex = None
    """Groups whose policy is more than so many steps old are never drawn: they are refused on
    arrival or thrown out, and counted. `staleness/max` stays at or below it."""
    max_uses: OptionalCount = None
    """Groups drawn so often are thrown out, and counted."""
    keep: bool = True
    """Keep every group that was collected as Parquet files in the run's folder (docs/replay.md).
    Otherwise files without a group that a kept checkpoint holds are deleted at each checkpoint."""
    half_life: Positive = 4.0
    """With sampler fresh: the staleness, in steps, at which a group counts half."""


@dataclass(frozen=True, kw_only=True)
class Logs:
    """Completions that were drawn elsewhere, to begin the replay buffer with (docs/replay.md)."""

    path: Annotated[Path | None, also("--from-logs")] = None
    """Rows of prompt, completion, log_probs and reward: a file (.jsonl, .parquet), or a folder of
    such files, as a run's experience/ is. With --schedule.offline all training is on them."""
    mix: Annotated[float | None, Interval(gt=0, lt=1), metavar("FLOAT in (0, 1)")] = None
    """Share of each draw that comes from the log, the rest from the run's own groups, each side
    uniformly. Default: no fixed share; --replay.sampler draws from both alike."""
    behavior: str | None = None
    """The model that drew rows without log_probs, which computes them: a Hugging Face folder, a
    known name, or start for the model that training begins with. Default: such rows are for methods
    that read no log-probs of the sampler's, and have the first model's in the metrics."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Pass@1, and Pass@k of k samples, on problems that are never trained on."""

    task: str | None = None
    """Another task to evaluate on: a name or a file; its prompts are not trained on."""
    path: str | None = None
    """Where that task's files are."""
    split: Literal["validation", "test"] = "test"
    """Which held-out problems: choose settings on validation, report on test. Generated ones share
    no prompt with each other or with training; with a path, validation is a part of the training
    file (GSM8K: every seventh problem), which is then left out of training."""
    prompts: Count = 512
    """Held-out prompts: the first so many of the split."""
    temperature: Temperature = 1.0
    """Temperature of the sampled Pass@1."""
    gradient_variance: bool = True
    """Measure the variance of an update's gradient between its groups beside each Pass@1: it costs
    a backward pass and two copies of the weights' size. Not on a mesh, nor with one prompt, nor
    where a token's loss depends on the whole batch (m2po, kl_cov)."""
    token_samples: Index = 8
    """Completions of each evaluated step's first batch that the run keeps token by token in
    tokens.jsonl, for the page: half of them with the largest ratios. They cost a forward pass of
    the batch where the method computes none before its updates, and some 30 bytes a token."""
    samples: OptionalCount = None
    """Completions of each held-out prompt; default: the group size, whose program is compiled."""
    max_tokens: OptionalCount = None
    """Longest answer in tokens; default: as long as the completions that are trained on."""
    batch: OptionalCount = None
    """Held-out prompts in one call of the trainer's own sampler; default: as in training. A large
    model answers many at once in less time, as its weights are read once for all of them."""
    engine: Literal["rollout", "embedded"] = "rollout"
    """What draws the answers: with --rollout.url the servers, or the trainer's own sampler all the
    same. While servers evaluate, they collect nothing."""


@dataclass(frozen=True, kw_only=True)
class Certification:
    """Whether each synchronisation improves the reward, from samples that no update saw."""

    delta: OptionalChance = None
    """Chance that one certificate is wrong, such as 0.05. None leaves them out."""
    completions: Count = 1280
    """Completions that old and new weights draw at most at each synchronisation for its certificate
    alone, in rounds of three batches until they certify: the price, which no update learns from.
    With `schedule.sync-offset` above 0 none are drawn: groups collected ahead are the evidence."""
    pairs: bool = False
    """Old and new weights answer each prompt with the same random numbers, and the difference of
    their rewards is the evidence: no log-prob is read, so that long completions and inexact
    log-probs cannot break it, and more draws certify as much. The trainer's own sampler alone."""


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """Writing of the run's state."""

    every: Count = 40
    """Steps between two checkpoints; the last and an interrupted step get one too."""
    keep: Count = 2
    """Checkpoints kept on disk."""


@runtime_checkable
class Named(Protocol):
    """An `ogrpo.core.algorithms.Algorithm`, which a config holds without importing JAX."""

    @property
    def name(self) -> str:
        """Its name, for messages and files."""
        ...


AlgorithmName = Annotated[str | Named, tyro.conf.arg(constructor=str, metavar="NAME")]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that a run is configured by."""

    preset: str = "none"
    """Named starting point for all other options."""
    task: str = "gsm8k"
    """What is trained on: the name of a task (docs/tasks.md), or a file of your own (.jsonl, .json,
    .csv, .parquet)."""
    rewards: tuple[str, ...] = ()
    """Functions that judge completions, as FILE.py:NAME or MODULE:NAME; default: the task's own, or
    for a file the comparison of its column `answer` by math-verify."""
    by: str | None = None
    """The reward that says right (1) or wrong (0), by which Pass@k counts. Default: as the task
    says, or the only one that is 0 or 1."""
    algorithm: AlgorithmName = "off_policy_grpo"
    """Method, whole: its loss, advantage, reduction and published settings; in Python an
    `Algorithm` too."""
    seed: Seed = 0
    """Seed of everything but the generated problems (--data.seed)."""
    run_dir: Path | None = None
    """Where everything is written; default: runs/TASK-<date>-<time>."""
    resume: bool = False
    """Go on with the run in --run-dir from its newest checkpoint."""
    resume_from: OptionalIndex = None
    """Go on from this step's checkpoint, 0 being the beginning: what was made after it is set
    aside."""
    resume_anyway: bool = False
    """Go on although options, data or tokenizer are not those of the checkpoint."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers that get each step's figures beside metrics.jsonl (pip install 'ogrpo[track]'); they
    are set up by their own environment variables."""
    push_to_hub: str | None = None
    """OWNER/NAME on the Hugging Face hub, where the trained model and its card are pushed at the
    end; a token (HF_TOKEN) is looked for at the beginning."""
    strict: bool = False
    """End the run where its first evaluation has nothing to learn from: nearly all answers
    unparsable, not judged, or of one reward. Otherwise this is a warning."""
    stop_when_worse: bool = False
    """End the run, its state saved, where a guard rail sees it get worse (docs/settings.md)."""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    lora: Lora = field(default_factory=Lora)
    warm_start: WarmStart = field(default_factory=WarmStart)
    reward: Judging = field(default_factory=Judging)
    rollout: Rollout = field(default_factory=Rollout)
    schedule: Schedule = field(default_factory=Schedule)
    replay: Replay = field(default_factory=Replay)
    logs: Logs = field(default_factory=Logs)
    reuse: Reuse = field(default_factory=Reuse)
    override: Override = field(default_factory=Override)
    knobs: Knobs = field(default_factory=Knobs)
    trust_region: Region = field(default_factory=Region)
    optimizer: Optimizer = field(default_factory=Optimizer)
    mesh: Mesh = field(default_factory=Mesh)
    processes: Processes = field(default_factory=Processes)
    kernels: Kernels = field(default_factory=Kernels)
    evaluation: Evaluation = field(default_factory=Evaluation)
    certificate: Certification = field(default_factory=Certification)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)

    def __post_init__(self) -> None:
        check(self)
        check_servers(self.rollout, "rollout.")
        check_conditions(self, EFFECTIVE_IF, clause=INERT)
        check_conditions(self, VALID_IF)

    @property
    def goes_on(self) -> bool:
        """Whether a run is gone on with."""
        return self.resume or self.resume_from is not None

    @property
    def begins(self) -> bool:
        """Whether a run begins with its first state and data, anew by --resume-from 0."""
        return not self.goes_on or self.resume_from == 0

    @property
    def from_logs_alone(self) -> bool:
        """Whether nothing is drawn to be trained on."""
        offline = self.schedule.offline and self.schedule.warmup == 0
        return self.logs.path is not None and offline

    @property
    def least_logged(self) -> int:
        """Groups that a log has at least: those that each draw takes of it."""
        draw = self.schedule.draw_size
        return draw if self.from_logs_alone else max(1, round((self.logs.mix or 0) * draw))

    @property
    def made_here(self) -> bool:
        """Whether the model is a small decoder that is made here."""
        return self.model.path is None and self.model.random == "none"

    @property
    def imitates(self) -> bool:
        """Whether imitation comes before RL."""
        return self.made_here or self.warm_start.solutions

    @property
    def longest_prompt(self) -> int:
        """Tokens that prompts are padded to."""
        return _settled("data.prompt-length", self.data.prompt_length)

    @property
    def longest_completion(self) -> int:
        """Tokens of the longest completion that is trained on."""
        return _settled("rollout.max-tokens", self.rollout.max_tokens)

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer to a held-out prompt."""
        return self.evaluation.max_tokens or self.longest_completion

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest completion or held-out answer."""
        return self.longest_prompt + max(self.longest_completion, self.longest_answer)

    @property
    def peak_rate(self) -> float:
        """The largest learning rate."""
        return _settled("optimizer.learning-rate", self.optimizer.learning_rate)


Number = TypeVar("Number", int, float)


def _settled(name: str, value: Number | None) -> Number:
    if value is None:
        raise ValueError(f"{name} is not known before the task is read: give it, or prepare first")
    return value
