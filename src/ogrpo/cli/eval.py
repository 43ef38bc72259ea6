"""`ogrpo eval`: how often a model is right on a task's held-out problems.

ogrpo eval --model.path DIR --task math-500 --data.path DIR --samples 16 --output answers.jsonl

answers  -> FILE.jsonl, one a line, as they are judged
metrics  -> FILE.metrics.json and a table
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ogrpo.cli.options import EvalConfig
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.evaluation import AnswerFile, AnswerRecord, sample_and_judge
from ogrpo.evaluation.metrics import AnswerOf, Summary, answer_readers, summary
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.protocol import Engine, IntArray, Sampling
from ogrpo.report.run_dir import RunDir
from ogrpo.serving.bridge import embedded_engine
from ogrpo.setup.cache import keep_compiled_programs
from ogrpo.setup.devices import DTYPES
from ogrpo.setup.find_task import check_sources, find_task
from ogrpo.setup.model import with_folder
from ogrpo.setup.prepare import chat_variables, make_pool, make_tokenizer
from ogrpo.setup.servers import connect
from ogrpo.system.files import write_json
from ogrpo.system.values import to_json
from ogrpo.tasks import EvaluationProtocol, Example, Task
from ogrpo.tasks.encode import encode_example

Encode = Callable[[Example], IntArray]


def evaluate(config: EvalConfig, console: Console | None = None) -> int:
    """Samples, judges and shows. Returns the exit code.

    Raises:
      ValueError: there is no model, the task cannot be read, or a file is in the way.
    """
    console = console or Console()
    if config.model.path is None:
        raise ValueError(
            "evaluation needs a model: give --model.path, a Hugging Face folder or a known name"
        )
    keep_compiled_programs()
    check_files(config)
    config = replace(config, model=with_folder(config.model, console))
    run = config.as_train
    check_sources(run)
    task = find_task(run).task
    for label, count in task.left_out:
        if not label.startswith("training"):
            console.print(f"{count} {label}", markup=False)
    success, heldout = config.by or task.success, task.heldout[: config.problems]
    task = replace(task, heldout=heldout, rewards=task.heldout_rewards, success=success)
    config = replace(config, by=task.success)
    with closing(make_pool(run, task.rewards)) as pool, ExitStack() as stack:
        sampling = sampling_of(config, task.protocol)
        tokenizer = make_tokenizer(run, task)
        encode = partial(
            encode_example,
            tokenizer=tokenizer,
            system=config.data.system,
            chat_variables=chat_variables(run, tokenizer),
        )
        chunks = sample_and_judge(
            make_engine(config, task, tokenizer, encode, sampling, console, stack),
            task.heldout,
            encode=encode,
            decode=tokenizer.decode,
            sampling=sampling,
            score=pool.score,
            seed=config.seed,
            batch=config.batch,
            concurrent=config.concurrent,
            judges=config.judges,
        )
        total = len(task.heldout) * sampling.group_size
        answers = collect_answers(chunks, config, total=total, console=console)
    settings = {**to_json(config), "task": task.name, **vars(sampling)}
    title = f"{task.name}, {len(task.heldout)} problems, {config.model.path}"
    how = {"title": title, "settings": settings, "console": console}
    show(answers, config, **how, answers_of=answer_readers(task.rewards))
    return 0


def sampling_of(config: EvalConfig, protocol: EvaluationProtocol | None) -> Sampling:
    """Returns how to draw: what the options say, and the task's protocol where they do not.

    Raises:
      ValueError: neither says it, several greedy answers are asked for, or a k is above the number
        of answers.
    """
    names = ("samples", "temperature", "max_tokens")
    values = {name: getattr(config, name) for name in names}
    missing = [name for name in names if values[name] is None]
    if missing and protocol is None:
        options = " ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ValueError(f"the task does not say how it is evaluated: give {options}")
    values |= {name: getattr(protocol, name) for name in missing}
    for k in config.ks:
        if not 1 <= k <= values["samples"]:
            raise ValueError(
                f"--ks {k}: Pass@k of {values['samples']} answers takes a k from 1 to"
                f" {values['samples']}: give another, or more --samples"
            )
    greedy = values["temperature"] == 0
    if greedy and values["samples"] > 1:
        raise ValueError(
            f"temperature 0 draws {values['samples']} times the same answer: give --samples 1, or a"
            " --temperature above 0"
        )
    return Sampling(values["temperature"], values["max_tokens"], values["samples"], greedy)


def make_engine(
    config: EvalConfig,
    task: Task,
    tokenizer: TextTokenizer,
    encode: Encode,
    sampling: Sampling,
    console: Console,
    stack: ExitStack,
) -> Engine:
    """Returns the servers' engine or the sampler of this process, with the model's weights.

    Raises:
      ValueError: the model has too few positions for the longest prompt and answer.
    """
    assert config.model.path is not None
    decoder, params = load_pretrained(config.model.path, DTYPES[config.model.dtype])
    longest = max(len(encode(example)) for example in task.heldout)
    if longest + sampling.max_tokens > decoder.max_positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens and answers up to {sampling.max_tokens}, but"
            f" the model has {decoder.max_positions} positions: give a smaller --max-tokens"
        )
    if config.servers.url:
        run, folder = config.as_train, RunDir(config.model.path)
        data = replace(run.data, prompt_length=longest)
        rollout = replace(run.rollout, max_tokens=sampling.max_tokens)
        arguments = (replace(run, data=data, rollout=rollout), folder, decoder, params)
        engine: Engine = stack.enter_context(connect(*arguments, tokenizer, console))
    else:
        engine = embedded_engine(
            decoder,
            eos_id=tokenizer.eos_id,
            batch_size=min(config.batch, len(task.heldout)),
            prompt_length=None,
            place_fn=jnp.asarray,
        )
    engine.publish(params, 0)
    return engine


def check_files(config: EvalConfig) -> None:
    """Raises ValueError, before anything is sampled, where a file would be overwritten."""
    if config.output is None:
        return
    if not config.output.parent.is_dir():
        raise ValueError(f"--output {config.output}: there is no folder {config.output.parent}")
    for path in (config.output, metrics_path(config.output)):
        if path.exists():
            raise ValueError(f"{path} exists: name another --output, or move it away")


def metrics_path(output: Path) -> Path:
    """Returns where the metrics of a file of answers are written."""
    return output.with_name(f"{output.name.removesuffix('.jsonl')}.metrics.json")


def collect_answers(
    chunks: Iterable[Sequence[AnswerRecord]], config: EvalConfig, *, total: int, console: Console
) -> list[AnswerRecord]:
    """Takes answers as they are judged, shows the progress, and writes them to `config.output`.

    Whatever ends it, the answers judged before are in the file.
    """
    answers: list[AnswerRecord] = []
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True)
    with nullcontext() if config.output is None else AnswerFile(config.output) as file:
        try:
            with progress:
                bar = progress.add_task("", total=total)
                for chunk in chunks:
                    if file is not None:
                        file.write(chunk)
                    answers += chunk
                    progress.advance(bar, len(chunk))
        except BaseException:
            if file is not None:
                line = f"ended early; {file.count} of {total} answers are in {file.path}"
                console.print(Text(line), soft_wrap=True)
            raise
    return answers


def show(
    answers: Sequence[AnswerRecord],
    config: EvalConfig,
    *,
    title: str,
    settings: Mapping[str, Any],
    console: Console,
    answers_of: Mapping[str, AnswerOf] | None = None,
) -> Summary:
    """Sums up answers, shows the table, and writes the metrics beside the answers if they are kept.

    Args:
      config: `ks`, `by` and `output`.
      settings: what was evaluated and how; written with the metrics, JSON-able.
      answers_of: by a reward's name, text -> the answer in it, for maj@k.
    """
    metrics = summary(answers, ks=config.ks or None, by=config.by, answers_of=answers_of)
    console.print(table(metrics, title))
    lines = []
    if "pass@1" not in metrics and not config.ks and config.by is None:
        names = ", ".join(answers[0].values)
        lines += [
            f"no Pass@k: none of {names}, or more than one, is 0 or 1; name what decides by --by"
        ]
    if metrics["failed"]:
        count = f"{metrics['failed']} of {metrics['answers']}"
        lines += [f"{count} answers have no verdict: a reward failed"]
    if config.output is not None:
        path = metrics_path(config.output)
        write_json(path, {"settings": dict(settings), "metrics": metrics})
        lines += [f"answers {config.output}, metrics {path}"]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return metrics


WHOLE = ("problems", "answers", "failed", "tokens/max")


def table(metrics: Summary, title: str = "") -> Table:
    """Returns a table of a `summary`: a metric, its value and its 95 % interval a row.

    Names and the title are shown as they are: no part of them is read as rich's markup.
    """
    shown = Table(title=Text(title) if title else None, title_justify="left")
    shown.add_column("metric")
    shown.add_column("value", justify="right")
    shown.add_column("95 % interval", justify="right")
    for name, value in metrics.items():
        if not name.endswith(("/low", "/high")):
            low, high = metrics.get(f"{name}/low"), metrics.get(f"{name}/high")
            known = low is not None and high is not None
            bounds = f"{_number(name, low)} to {_number(name, high)}" if known else ""
            shown.add_row(Text(name), _number(name, value), bounds)
    return shown


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    if name in WHOLE:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if name.startswith("tokens") else f"{value:.3f}"
