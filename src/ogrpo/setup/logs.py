"""Logs of completions that a run is to learn from: their files, the terms of the run, and how far a
model is from who drew them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.config.method import reads_behavior, title
from ogrpo.config.train import TrainConfig
from ogrpo.core.certificates import logged_gain
from ogrpo.core.weights import ess_fraction
from ogrpo.data.logs import Log, LogTerms, read_log
from ogrpo.data.replay import Experience
from ogrpo.data.replay.columns import ANOTHER
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.learner.hosts import fetch
from ogrpo.learner.state import Params
from ogrpo.loop.certify import HEADROOM, HIGHEST, LOWEST, certify, worst_rewards
from ogrpo.loop.collect import scored
from ogrpo.loop.parts import BatchScoreFn, Learner, Prompts
from ogrpo.policy.pretrained import load_config, load_pretrained
from ogrpo.protocol import FloatArray, IntArray
from ogrpo.setup.cache import weights_folder
from ogrpo.setup.devices import DTYPES, make_policy_fn
from ogrpo.system.values import require
from ogrpo.tasks.example import to_prompt
from ogrpo.tasks.rows import Row, is_rows, read_jsonl, read_parquet, read_rows

START = "start"
"""The behaviour model that a run begins with."""
READERS = {".parquet": read_parquet, ".jsonl": read_jsonl}


def rows_of(path: Path) -> Iterator[Row]:
    """Yields the rows of a file, of all files in a folder, or of a run's experience.

    Raises:
      ValueError: there is none, or one cannot be read; names the file and the line.
    """
    path = path.expanduser()
    if not path.is_dir() or is_rows(str(path)):
        yield from READERS.get(path.suffix, read_rows)(path)
        return
    folder = path / "experience" if (path / "experience").is_dir() else path
    files = sorted(file for file in folder.iterdir() if file.suffix in READERS)
    require(bool(files), f"{folder} has no file that ends in {' or '.join(READERS)}")
    for file in files:
        yield from READERS[file.suffix](file)


def log_terms(
    tokenizer: TextTokenizer, *, system: str | None, variables: Any, **bounds: Any
) -> LogTerms:
    """Returns terms whose texts and messages are encoded as a task's are.

    Args:
      tokenizer: of the model.
      system: an opening system turn.
      variables: of the chat template.
      **bounds: the other fields of `LogTerms`.
    """

    def encode(prompt: Any) -> IntArray:
        checked = to_prompt(prompt, "prompt", "")
        return tokenizer.encode_prompt(checked, system=system, chat_variables=variables)

    eos_id = tokenizer.eos_id
    return LogTerms(encode_prompt=encode, encode=tokenizer.encode, eos_id=eos_id, **bounds)


@dataclass(frozen=True)
class RunLog:
    """The log of a run, read once, when it is first asked for."""

    config: TrainConfig
    """Settled."""
    tokenizer: TextTokenizer
    prompts: Prompts
    variables: Any
    """Of the chat template."""

    @cached_property
    def log(self) -> Log:
        """Its groups and counts.

        Raises:
          ValueError: it cannot be read, has no row to learn from, or lacks what the method reads.
        """
        config, tokenizer = self.config, self.tokenizer
        assert config.logs.path is not None
        folder = config.model.path
        terms = log_terms(
            tokenizer,
            system=config.data.system,
            variables=self.variables,
            group_size=config.rollout.group_size,
            temperature=config.rollout.temperature,
            vocab_size=tokenizer.padded_vocab_size(16)
            if folder is None
            else load_config(weights_folder(folder)).vocab_size,
            prompt_length=config.longest_prompt,
            completion_length=config.longest_completion,
            held_out=frozenset(ids.tobytes() for ids in self.prompts.heldout),
        )
        try:
            log = read_log(rows_of(config.logs.path), terms)
        except ValueError as error:
            raise ValueError(f"logs.path {config.logs.path}: {error}") from error
        check_log(config, log)
        return log

    def experiences(self) -> list[Experience]:
        """Returns its groups as this run's buffer takes them.

        They are of the version before the first, and of the task's problem whose prompt they have;
        other prompts are numbered on from the task's.
        """
        known = {ids.tobytes(): n for n, ids in enumerate(self.prompts.train)}
        taken = []
        for one in self.log.experiences:
            drawn = (replace(each, policy_version=ANOTHER) for each in one.group.completions)
            group = replace(one.group, completions=tuple(drawn))
            problem = known.get(group.prompt_ids.tobytes(), len(self.prompts.train) + one.problem)
            taken.append(Experience(group, one.rewards, problem))
        return taken

    @property
    def title(self) -> str:
        """A line of how much was read."""
        log = self.log
        absent = log.without_log_probs
        model = self.config.logs.behavior or START
        who = "the model that training begins with" if model == START else model
        return (
            f"log {self.config.logs.path}: {len(log.experiences):,} groups of"
            f" {self.config.rollout.group_size} from {log.rows:,} rows"
            + (f"; {absent:,} without log-probs, which are computed with {who}" if absent else "")
        )


def check_log(config: TrainConfig, log: Log) -> None:
    """Refuses a log that lacks the log-probs that the method reads.

    Raises:
      ValueError: names what can be done.
    """
    absent, behavior = log.without_log_probs, config.logs.behavior
    require(
        behavior is None or absent > 0,
        f"logs.behavior is {behavior}, which changes nothing here: all rows have log_probs",
    )
    require(
        not absent or behavior is not None or not reads_behavior(config),
        f"{absent:,} of {log.accepted:,} rows of {config.logs.path} have no log_probs, which"
        f" {title(config)} divides by: name the model that drew them (--logs.behavior DIR, or start"
        " for the one that training begins with), or take a method that reads none, such as"
        " --algorithm raft, positives or reinforce",
    )
    require(
        len(log.experiences) >= config.least_logged,
        f"{config.logs.path} has {len(log.experiences)} groups of {config.rollout.group_size}"
        f" completions of a prompt, and the run needs at least {config.least_logged}: give a"
        " smaller --rollout.group-size or --schedule.draw, or more rows",
    )
    require(
        any(not np.isnan(one.rewards).all() for one in log.experiences),
        f"no completion of {config.logs.path} was judged: rewards are null or NaN in all groups",
    )


def make_behavior(
    config: TrainConfig, learner: Learner, tokenizer: TextTokenizer
) -> Callable[[Params, Batch[np.ndarray]], FloatArray]:
    """Returns what computes the log-probs that a log lacks."""
    temperature, name = jnp.float32(config.rollout.temperature), config.logs.behavior
    if name in (None, START):

        def of_start(params: Params, batch: Batch[np.ndarray]) -> np.ndarray:
            return np.asarray(fetch(learner.score(params, learner.place(batch), temperature)))

        return of_start

    @cache
    def score_fn() -> BatchScoreFn:
        folder = weights_folder(Path(name))
        theirs = TextTokenizer.load(folder).backend.get_vocab()
        require(
            theirs == tokenizer.backend.get_vocab(),
            f"logs.behavior {name} has another tokenizer than the model that is trained: its"
            " log-probs are of other tokens",
        )
        return model_score(folder, config.model.dtype, config.rollout.temperature)

    if config.begins:  # refused early; a run that goes on has its log's groups
        score_fn()
    return lambda _, batch: score_fn()(batch)


def model_score(folder: Path, dtype: str, temperature: float) -> BatchScoreFn:
    """Returns `padded groups -> log-probs [N, G, T]` of a model in a folder."""
    decoder, weights = load_pretrained(folder, DTYPES[dtype])
    policy_fn, heat = make_policy_fn(decoder), jnp.float32(temperature)
    score = jax.jit(lambda params, batch: policy_fn(params, batch, heat).log_probs)
    return lambda batch: np.asarray(score(weights, jax.tree.map(jnp.asarray, batch)))


Ratios = npt.NDArray[np.float64]
"""Logs of pi/mu."""
DELTA = 0.05
"""Chance that the bound on the gain is wrong."""


class Support(NamedTuple):
    """Figures of a log under a model; NaN where there is nothing that they are of."""

    finite: float
    """Share of the completions that have a finite log-prob under the model."""
    log_prob: float
    """Mean log-prob of a token of these, in nats."""
    ratios: Ratios
    """log pi/mu of each of these that came with log-probs."""
    mass: float
    """Mean of pi/mu: 1 on average where mu covers pi, less where what counts was not drawn."""
    ess_sequence: float
    """Effective sample size of the ratios, as a share of them."""
    ess_token: float
    """The same of the ratios of tokens."""
    gain: float
    """Lower bound of J(pi) - J(mu) that holds with a chance of 1 - `DELTA`; NaN where rewards lie
    outside [0, 1] or a completion has no ratio."""


def support(groups: Sequence[Experience], score: BatchScoreFn, *, together: int) -> Support:
    """Compares a model's log-probs of a log with those that it came with.

    Args:
      groups: of the log; NaN log-probs where it has none.
      score: padded groups -> the model's log-probs.
      together: groups that are scored at a time.
    """
    done = [c for one in groups for c in one.group.completions]
    rewards = np.concatenate([one.rewards for one in groups])
    lengths = max(len(x.group.prompt_ids) for x in groups), max(len(c.token_ids) for c in done)
    pairs = zip(scored(groups, score, lengths, together=together), done, strict=True)
    rows = [(pi, pi - c.log_probs) for pi, c in pairs]
    finite = [pi.astype(np.float64) for pi, _ in rows if np.isfinite(pi).all()]
    tokens = [ratio.astype(np.float64) for _, ratio in rows if np.isfinite(ratio).all()]
    ratios = np.array([each.sum() for each in tokens])
    return Support(
        finite=len(finite) / len(done),
        log_prob=_mean(np.concatenate([[], *finite])),
        ratios=ratios,
        mass=_mean(np.exp(np.minimum(ratios, 700))),
        ess_sequence=effective_share(ratios),
        ess_token=effective_share(np.concatenate([[], *tokens])),
        gain=sure_gain(ratios, rewards) if len(tokens) == len(done) else float("nan"),
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def effective_share(log_weights: Ratios) -> float:
    """Returns `ess_fraction` of weights exp(log_weights); NaN of none."""
    if not len(log_weights):
        return float("nan")
    return float(ess_fraction(jnp.asarray(log_weights), jnp.ones(len(log_weights), bool)))


def sure_gain(log_ratios: Ratios, rewards: npt.NDArray[np.float32]) -> float:
    """Returns the lower confidence limit of `logged_gain`; what was not judged counts as worst."""
    rewards = np.asarray(worst_rewards(jnp.asarray(rewards), jnp.asarray(log_ratios)))
    if not len(rewards) or rewards.min() < LOWEST or rewards.max() > HIGHEST:
        return float("nan")
    span = {"reward_low": LOWEST, "reward_high": HIGHEST, "slack": 0.0, "headroom": HEADROOM}
    gains = logged_gain(jnp.asarray(log_ratios), jnp.asarray(rewards), **span)
    return float(certify(np.asarray(gains, np.float64), DELTA).bound)
