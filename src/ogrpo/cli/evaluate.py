"""`ogrpo eval` without the model: its options, its files, and what it shows.

answers  -> FILE.jsonl, one a line, as they are judged
metrics  -> FILE.metrics.json and a table
--rescore FILE judges FILE's answers again; with --output, into a new file
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ogrpo.evaluation import AnswerFile, AnswerRecord, JudgeFn, rescore
from ogrpo.evaluation.metrics import AnswerOf, Summary, summary
from ogrpo.evaluation.table import table
from ogrpo.protocol import Sampling


class ProtocolLike(Protocol):
    """How a task's authors draw held-out answers (`ogrpo.tasks` has the class)."""

    @property
    def samples(self) -> int:
        """Completions of each problem."""
        ...

    @property
    def temperature(self) -> float:
        """0 for the most likely token."""
        ...

    @property
    def max_tokens(self) -> int:
        """Tokens of a completion at most."""
        ...


@dataclass(frozen=True)
class EvalOptions:
    """How held-out answers are drawn, summed up and kept."""

    samples: int | None = None
    """Answers to each problem; the task's protocol says it where left out."""
    temperature: float | None = None
    """0 for the most likely token, greedily; the task's protocol says it where left out."""
    max_tokens: int | None = None
    """Tokens of an answer at most; the task's protocol says it where left out."""
    batch: int = 32
    """Problems that the engine is asked for at once."""
    concurrent: int = 1
    """Batches that are sampled at once: 2 or 3 keep servers busy while a batch's longest answers
    come."""
    judges: int = 8
    """Problems that are judged at once."""
    seed: int = 0
    """Of the draws."""
    ks: tuple[int, ...] = ()
    """The k of Pass@k and maj@k; by default the powers of two up to the number of samples, and that
    number."""
    by: str | None = None
    """The reward that says right or wrong; by default the one that the task names, or the only one
    that is 0 or 1."""
    output: Path | None = None
    """Where answers are written, one a line; a new file."""
    rescore: Path | None = None
    """A file of answers to judge again, without sampling."""

    def __post_init__(self) -> None:
        for name in ("samples", "max_tokens", "batch", "concurrent", "judges"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; give at least 1")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise ValueError(f"--temperature is {self.temperature}; give a finite one from 0")
        if self.rescore is not None:
            self._check_rescoring()

    def _check_rescoring(self) -> None:
        drawn = {
            "samples": self.samples,
            "temperature": self.temperature,
            "max-tokens": self.max_tokens,
        }
        for name, value in drawn.items():
            if value is not None:
                raise ValueError(f"--rescore samples nothing: leave --{name} out")

    def sampling(self, protocol: ProtocolLike | None) -> Sampling:
        """Return how to draw: what the options say, and the task's protocol where they do not.

        Raises:
            ValueError: neither says it, or several greedy answers are asked for.
        """
        samples = self._said("samples", protocol)
        temperature = self._said("temperature", protocol)
        greedy = temperature == 0
        if greedy and samples > 1:
            raise ValueError(
                f"temperature 0 draws {samples} times the same answer: give --samples 1, or a "
                "--temperature above 0"
            )
        return Sampling(temperature, self._said("max_tokens", protocol), samples, greedy)

    def _said(self, name: str, protocol: ProtocolLike | None) -> Any:
        given = getattr(self, name)
        if given is None and protocol is None:
            option = name.replace("_", "-")
            raise ValueError(f"the task does not say how it is evaluated: give --{option}")
        return getattr(protocol, name) if given is None else given


def check_files(options: EvalOptions) -> None:
    """Refuse files that would be overwritten, before anything is sampled.

    Raises:
        ValueError: a file that would be written exists, or its folder does not.
    """
    if options.output is None:
        return
    if not options.output.parent.is_dir():
        raise ValueError(f"--output {options.output}: there is no folder {options.output.parent}")
    for path in (options.output, metrics_path(options.output)):
        if path.exists():
            raise ValueError(f"{path} exists: name another --output, or move it away")


def metrics_path(output: Path) -> Path:
    """Return where the metrics of a file of answers are written."""
    return output.with_name(f"{output.name.removesuffix('.jsonl')}.metrics.json")


def collect_answers(
    chunks: Iterable[Sequence[AnswerRecord]],
    options: EvalOptions,
    *,
    total: int,
    console: Console,
) -> list[AnswerRecord]:
    """Take answers as they are judged, show the progress, and write them if asked to.

    Whatever ends it, the answers judged before are in the file.

    Args:
        chunks: what `sample_and_judge` gives.
        options: `output` says where to.
        total: answers to come.
        console: the progress bar's.
    """
    answers: list[AnswerRecord] = []
    file = None if options.output is None else AnswerFile(options.output)
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=total)
            for chunk in chunks:
                if file is not None:
                    file.write(chunk)
                answers += chunk
                progress.advance(bar, len(chunk))
    except BaseException:
        if file is not None:
            told = f"ended early; {file.count} of {total} answers are in {file.path}"
            console.print(Text(told), soft_wrap=True)
        raise
    finally:
        if file is not None:
            file.close()
    return answers


def tell(
    answers: Sequence[AnswerRecord],
    options: EvalOptions,
    *,
    title: str,
    settings: Mapping[str, Any],
    console: Console,
    answers_of: Mapping[str, AnswerOf] | None = None,
) -> Summary:
    """Sum up answers, show the table, and write the metrics beside the answers if they are kept.

    Args:
        answers: of one evaluation.
        options: `ks`, `by` and `output`.
        title: the table's.
        settings: what was evaluated and how; written with the metrics, JSON-able.
        console: where the table goes.
        answers_of: by a reward's name, text -> the answer in it, for maj@k.
    """
    found = summary(answers, ks=options.ks or None, by=options.by, answers_of=answers_of)
    console.print(table(found, title))
    if "pass@1" not in found and not options.ks:
        names = ", ".join(answers[0].values)
        told = f"no Pass@k: none of {names}, or more than one, is 0 or 1; name what decides by --by"
        console.print(Text(told), soft_wrap=True)
    if found["failed"]:
        told = f"{found['failed']} of {found['answers']} answers have no verdict: a reward failed"
        console.print(Text(told), soft_wrap=True)
    if options.output is not None:
        path = metrics_path(options.output)
        _write(path, {"settings": dict(settings), "metrics": found})
        console.print(Text(f"answers {options.output}, metrics {path}"), soft_wrap=True)
    return found


def tell_rescored(
    options: EvalOptions,
    score: JudgeFn,
    *,
    console: Console,
    answers_of: Mapping[str, AnswerOf] | None = None,
) -> Summary:
    """Judge the answers of `options.rescore` again, and show what changed and the new table.

    Raises:
        ValueError: no file is named, or it or the rewards are not what they should be.
    """
    if options.rescore is None:
        raise ValueError("name the file to judge again: --rescore FILE")
    check_files(options)
    done = rescore(options.rescore, score, judges=options.judges)
    if options.output is not None:
        with AnswerFile(options.output) as file:
            file.write(done.answers)
    console.print(Text(f"{options.rescore}: {done}"), soft_wrap=True)
    settings = {"rescored": str(options.rescore), "changed": len(done.changed)}
    title = f"{options.rescore.name}, judged again"
    return tell(
        done.answers,
        options,
        title=title,
        settings=settings,
        console=console,
        answers_of=answers_of,
    )


def _write(path: Path, found: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(draft, path)
