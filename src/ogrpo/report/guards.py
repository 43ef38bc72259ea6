"""Guard rails: what in a run's records says that it has nothing to learn from, or gets worse.

They read records alone, so that a run warns as it goes, a page as it is drawn, and a resumed run
knows what was said before.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from ogrpo.report.run_dir import plain
from ogrpo.report.scores import Record, interval, is_evaluated, scores

NEARLY_ALL = 0.95
"""The share of the first held-out answers that must not be alike."""
NO_SUCCESS = 20
"""Steps in a row without a reward that is another's."""
WINDOW = 5
"""Steps whose signals are averaged."""
SIGNALS = (
    ("kl/pi_mu", 2.0, "KL(π‖μ)", "{:.3g} nats a token"),
    ("ratio/tail", 3.0, "the 99 % quantile of the token ratios", "{:.3g}"),
)
"""One or the other is passed by 36 of 390 sound runs of two studies, and by 84 of 114 that fell
(docs/settings.md)."""


class GuardMessage(NamedTuple):
    """A warning of a guard rail."""

    kind: Literal["start", "no success", "fall", "signal"]
    """`start`: there is nothing to learn from; `no success`, `fall`: the run got worse; `signal`:
    it may get worse, or its ratios are biased."""
    step: int
    text: str


class Guards:
    """Reads the records of a run one after the other, and warns once of each thing."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.messages: list[GuardMessage] = []
        self._best: dict[str, Record] = {}
        self._fallen: set[str] = set()
        self._without = 0
        self._evaluated = False
        self._success: str | None = None
        self._recent = {key: deque[float](maxlen=WINDOW) for key, *_ in SIGNALS}
        self._beyond: set[str] = set()
        self._biased = False
        for record in records:
            self.see(record)

    def see(self, record: Record) -> list[GuardMessage]:
        """Takes the next record; returns what is to be said of it now."""
        record, texts = plain(record), list[tuple[Any, str]]()
        if is_evaluated(record):
            self._success = record.get("heldout/by")
            if not self._evaluated:
                texts += [("start", text) for text in nothing_to_learn(record)]
            self._evaluated = True
            texts += [("fall", text) for text in self._falls(record)]
        texts += [("no success", text) for text in self._no_success(record)]
        texts += [("signal", text) for text in self._signals(record)]
        if record.get("ratio/bias") is not None and not self._biased:
            self._biased = True
            text = (
                f"the mean ratio of policy to sampler is {1 + record['ratio/bias']:.3f} although"
                " both have the same weights: the sampler never draws some tokens to which the"
                " policy gives probability, which biases every ratio by as much. Give"
                " --rollout.keep-sampling-mask, or leave --rollout.top-k, .top-p and .min-p out"
            )
            texts.append(("signal", text))
        messages = [GuardMessage(kind, record["step"], text) for kind, text in texts]
        self.messages += messages
        return messages

    def _falls(self, record: Record) -> Iterable[str]:
        """Yields a warning where sampled Pass@1 (the mean reward if there is none) or Pass@k fell.

        Pass@k may fall while Pass@1 rises, as a surer policy gives more equal answers: that is no
        warning.
        """
        drawn = [score for score in scores([record]) if "greedy" not in score.key]
        head = drawn[0].key if drawn else ""
        for key, label, is_share in drawn:
            if record.get(f"{key}/high") is None or (key != head and not is_share):
                continue
            best = self._best.setdefault(key, record)
            if record[key] >= best[key]:
                self._best[key] = record
            rose = key != head and record[f"{head}/low"] > best[f"{head}/high"]
            if record[f"{key}/high"] >= best[f"{key}/low"] or rose:
                self._fallen.discard(key)
            elif key not in self._fallen:
                self._fallen.add(key)
                yield (
                    f"held-out {label}, fell by more than its interval: {interval(record, key)}"
                    f" after {interval(best, key)} at step {best['step']}. A smaller"
                    " --optimizer.learning-rate, fresher samples or --resume-from"
                    f" {best['step']} with either may help"
                )

    def _no_success(self, record: Record) -> Iterable[str]:
        starved = record.get("reuse/starved") and not record.get("reuse/draws")
        if record.get("reward") is None and not starved:
            return
        success = record.get(f"reward/{self._success}")  # None where it judges no training
        alike = record.get("zero_variance") == 1 if success is None else success == 0
        self._without = self._without + 1 if alike or starved else 0
        if self._without == NO_SUCCESS and starved and not alike:
            yield (
                f"{NO_SUCCESS} steps in a row made no update: the buffer has too few groups to"
                " draw from. Give more --replay.groups, or refuse fewer (--replay.max-staleness)"
            )
        elif self._without == NO_SUCCESS:
            what = "groups of equal rewards alone" if success is None else "no success"
            yield (
                f"{NO_SUCCESS} steps in a row had {what}: they taught nothing. Give easier"
                " problems, a reward that tells completions apart, or a larger --rollout.group-size"
            )

    def _signals(self, record: Record) -> Iterable[str]:
        for key, limit, name, form in SIGNALS:
            odd = record["nonfinite"]  # an update of which all is NaN was skipped
            value = math.inf if key in odd and "loss" not in odd else record.get(key)
            if value is None:
                continue
            self._recent[key].append(value)
            mean = math.fsum(self._recent[key]) / len(self._recent[key])
            if len(self._recent[key]) == WINDOW and mean > limit and key not in self._beyond:
                self._beyond.add(key)
                yield (
                    f"{name} is {form.format(mean)} in the mean of {WINDOW} steps: few runs that"
                    f" kept their score passed {limit:g}, and most runs whose score fell did"
                    " (docs/settings.md). A smaller --optimizer.learning-rate or fresher samples"
                    " may help"
                )


def nothing_to_learn(record: Record) -> list[str]:
    """Returns what makes the answers of a first evaluation all alike, with the remedy."""
    remedies = {
        "unjudged": "not judged: their reward failed, as the run's output says. Mend it",
        "unparsable": "unparsable: no answer was found in them to compare. Show the model how to"
        " end its answers, say where the answer stands (--reward.extraction marker, boxed or free),"
        " or judge by a reward of your own (--rewards FILE.py:NAME)",
        "truncated": "cut off before they ended: give a larger --rollout.max-tokens, or a model"
        " that ends its answers",
        "equal": "of one reward: equal rewards teach nothing. Give easier or harder problems,"
        " longer answers (--rollout.max-tokens), or a reward that tells answers apart",
    }
    shares = {name: record.get(f"heldout/{name}") or 0 for name in remedies}
    alike = [(share, remedies[name]) for name, share in shares.items() if share >= NEARLY_ALL]
    return [f"{share:.0%} of the held-out answers are {text}" for share, text in alike[:1]]
