"""The main study: GRPO on grade-school mathematics, from the first prompt to the report."""

import resource
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.hosts import fetch, from_first, is_first, on_first, several
from ogrpo.learner.memory import give_back_after_compiling
from ogrpo.learner.state import TrainState
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.lora_files import save_adapter
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.counted import counted
from ogrpo.report.progress import display, summary_table
from ogrpo.report.run_dir import RunDir, RunDirError
from ogrpo.report.run_page import Answer, Sample, Told, write_report
from ogrpo.rewards.judge import Judge, RewardCounts
from ogrpo.rollout.collection import CollectionError
from ogrpo.rollout.vllm import RolloutError
from ogrpo.tasks import Example, Prompt, Task
from ogrpo.trainer.build import batching_line, find_devices, make_parts
from ogrpo.trainer.cache import keep_compiled_programs
from ogrpo.trainer.config import TrainConfig, to_json
from ogrpo.trainer.devices import Devices, memory_lines, open_mesh
from ogrpo.trainer.diverged import DivergedError
from ogrpo.trainer.dump import dumping
from ogrpo.trainer.evaluate import withdraw
from ogrpo.trainer.interrupt import StopRequest, stop_on_signal
from ogrpo.trainer.judge import RewardError
from ogrpo.trainer.loop import train
from ogrpo.trainer.method import check, title
from ogrpo.trainer.model import DTYPES, save_model
from ogrpo.trainer.prepare import Prepared, prepare
from ogrpo.trainer.processes import (
    agreed,
    alone,
    check_alike,
    check_processes,
    quiet_elsewhere,
    same_model,
    start_processes,
)
from ogrpo.trainer.servers import connect
from ogrpo.trainer.shared import SharedEngine, shared_parts, shared_run
from ogrpo.trainer.sources import check_sources
from ogrpo.trainer.state import LoopState, Parts, Record, array_shapes, resume, start, stream_seed

SHOWN_ANSWERS = 12
STOPPING = (CollectionError, DivergedError, RewardError, RolloutError)


class Invocation(NamedTuple):
    """What the user typed."""

    whole: str
    """The whole of it, for the report."""
    program: str
    """Its beginning, which options follow."""


@dataclass(frozen=True)
class Session:
    """A run that is ready to go."""

    config: TrainConfig
    run: RunDir
    prepared: Prepared
    decoder: DecoderConfig
    devices: Devices
    parts: Parts
    console: Console
    command: Invocation


@dataclass(frozen=True)
class Finished:
    """What a run ended with."""

    run: RunDir
    stopped: signal.Signals | None
    """The signal that stopped it before its last step."""


def open_run(config: TrainConfig) -> RunDir:
    """The run's folder, new or picked up again."""
    if config.resume:
        if config.run_dir is None:
            raise RunDirError("--resume needs the --run-dir of the run to go on with")
        return RunDir.reopen(config.run_dir)
    stamp, name = f"{datetime.now():%Y%m%d-%H%M%S}", Path(config.task).stem
    return RunDir.create(config.run_dir or Path("runs") / f"{name}-{stamp}")


def as_json(config: TrainConfig) -> dict:
    """The config as it is written into the run's folder."""
    values = to_json(alone(config))
    return {key: value for key, value in values.items() if key not in ("run_dir", "resume")}


def run(
    config: TrainConfig, console: Console, command: Invocation, task: Task | None = None
) -> Finished:
    """Trains, evaluates, saves and reports.

    Args:
      config: what is asked for.
      console: where it is shown.
      command: what goes on with the run once it was stopped.
      task: in place of the one that the config names.

    Raises:
      ValueError: something that is asked for is wrong; nothing was computed yet.
      RolloutError: servers are gone; the state is saved, and the message says how to go on.
    """
    start_processes(config.processes)
    console = quiet_elsewhere(console)
    keep_compiled_programs()
    give_back_after_compiling()
    check_sources(config, task)
    open_mesh(config.mesh)  # refused before anything is written
    prepared = prepare(config, task)
    with closing(prepared), ExitStack() as stack:
        config = prepared.config
        check(config)
        check_processes(config)
        check_alike(prepared)
        folder = shared_run(lambda: open_run(config))
        console.print(f"run directory {folder.path}", markup=False, soft_wrap=True)
        for label, count in prepared.left_out:
            if count:
                console.print(f"[yellow]{count} {label}[/]")
        decoder, params = same_model(prepared, console)
        params = kept_base(config, folder, decoder, params, prepared.tokenizer)
        devices = find_devices(config, decoder)
        params = devices.place_params(params)
        engine = None
        if config.rollout.url:
            served = params if config.model.path else fetch(params, everywhere=False)
            how = (config, folder, decoder, served, prepared.tokenizer, console)
            found = on_first(lambda: stack.enter_context(connect(*how)))
            engine = SharedEngine(found) if several() else found
        parts = make_parts(
            config, prepared, decoder, engine, devices=devices, experience=folder.experience
        )
        parts = shared_parts(parts)
        session = Session(config, folder, prepared, decoder, devices, parts, console, command)
        return Finished(folder, carry_out(session, params))


def kept_base(
    config: TrainConfig,
    run: RunDir,
    decoder: DecoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
) -> Params:
    """The weights beneath adapters, kept by the run where no folder of the user's holds them.

    Checkpoints and `adapter/` are nothing without them, and making them again, by other versions or
    on another machine, need not give the same bits.
    """
    if config.lora.rank is None or config.model.path is not None:
        return params
    if config.resume and (run.initial / "config.json").is_file():
        return load_pretrained(run.initial, DTYPES[config.model.dtype])[1]
    on_first(lambda: save_model(run.initial, decoder, params, tokenizer))
    return params


def carry_out(session: Session, params: Params) -> signal.Signals | None:
    """A run whose parts are ready; returns the signal that stopped it, if one did."""
    if not session.config.resume:
        session.run.write_config(as_json(session.config))
    before = greedy_answers(session, params, version=0)
    withdraw(session.parts.evaluator)
    state, stop = train_to_end(session, params)
    finish(session, state, before)
    if stop.signal is not None:
        session.console.print(f"stopped by {stop.signal.name} after step {state.step}; go on with:")
        session.console.print(f"  {resume_command(session)}", markup=False, soft_wrap=True)
    return stop.signal


def train_to_end(session: Session, params: Params) -> tuple[LoopState, StopRequest]:
    """Runs the loop, leaving a metrics record a step and a checkpoint now and then."""
    config, console = session.config, session.console
    keep, every, steps = config.checkpoint.keep, config.checkpoint.every, config.schedule.steps

    def notify(name: str) -> None:
        console.print(f"{name}: stopping after this step; once more to stop at once")

    with (
        Checkpoints(session.run.checkpoints, keep=keep) as checkpoints,
        stop_on_signal(notify) as stop,
    ):
        state = begin(session, params, checkpoints)
        if config.resume:  # not before it is accepted
            session.run.write_config(as_json(config))
        with session.run.metrics_writer() as metrics, display(console, steps, state.step) as shown:
            try:
                turns = train(state, session.parts, config.schedule)
                whose = (session.run.path, as_json(config), session.decoder, session.parts)
                for turn in dumping(turns, *whose):
                    state, record = turn
                    if is_first():
                        metrics.write(record)
                        shown.show(record)
                    stop.signal = agreed(stop.signal)
                    stopping = bool(stop)  # a signal that comes from here on is for the next step
                    due = state.step % every == 0 and state.step > 0
                    if due or state.step == steps or stopping:
                        checkpoints.save(state.step, state.arrays(), progress(session, state))
                        if not config.replay.keep:
                            kept = map(checkpoints.progress, checkpoints.steps)
                            state.buffer.prune(each["buffer"] for each in kept)
                    if stopping:
                        break
            except STOPPING as error:  # the trainer's state is not lost
                checkpoints.save(state.step, state.arrays(), progress(session, state))
                command = resume_command(session)
                raise type(error)(f"{error}\ngo on with:\n  {command}") from error
    return state, stop


def progress(session: Session, state: LoopState) -> dict[str, Any]:
    """A checkpoint's progress: the loop's, and how answers came out so far."""
    counts = {name: found._asdict() for name, found in outcomes(session).items()}
    return {**state.progress(), "judged": counts}


def counting(session: Session) -> dict[str, Judge]:
    """The rewards that count outcomes, by what they judge."""
    judges = {
        "completions": session.prepared.judge,
        "evaluation answers": session.prepared.judge_heldout,
    }
    return {
        what if len(judge.rewards) == 1 else f"{what}, {reward.name},": reward.function
        for what, judge in judges.items()
        for reward in judge.rewards
        if isinstance(reward.function, Judge)
    }


def outcomes(session: Session) -> dict[str, RewardCounts]:
    """How answers came out since the run began, by what they are answers to."""
    return {name: reward.counts for name, reward in counting(session).items()}


@contextmanager
def not_counted(session: Session) -> Iterator[None]:
    """Leaves the counts as they are: an evaluation counts the same answers."""
    counts = {name: reward.counts for name, reward in counting(session).items()}
    yield
    for name, reward in counting(session).items():
        reward.counts = counts[name]


def begin(session: Session, params: Params, checkpoints: Checkpoints) -> LoopState:
    """The first state, or the newest checkpoint's; the records after it will be written again."""
    step = checkpoints.latest if session.config.resume else None
    if step is not None:
        return resumed(session, params, checkpoints, step)
    if session.config.resume:
        session.console.print("no checkpoint yet: starting over")
        session.run.rewind(-1)
    initial = session.parts.init(params)
    describe(session, initial)
    return start(initial, session.parts)


def resumed(session: Session, params: Params, checkpoints: Checkpoints, step: int) -> LoopState:
    """The state of a checkpoint, read in place of `params`: both at once may not fit.

    What stands beneath adapters is in no checkpoint, and stays.
    """
    shapes = session.parts.shapes(params)
    describe(session, shapes)
    session.console.print(f"resuming after step {step}")
    session.run.rewind(step or -1)  # a loop at step 0 begins with that step's own record
    if not shapes.frozen:
        for leaf in jax.tree.leaves(params):
            leaf.delete()
    arrays, before = checkpoints.restore(step, array_shapes(shapes, session.parts))
    for name, reward in counting(session).items():  # older checkpoints have no counts
        reward.counts = RewardCounts(**before.get("judged", {}).get(name, {}))
    return resume(arrays, before, session.parts, frozen=shapes.frozen)


def describe(session: Session, state: TrainState) -> None:
    """Says what the algorithm is, what the train state takes, and how batches are laid out."""
    session.console.print(f"algorithm: {title(session.config)}", soft_wrap=True)
    for line in memory_lines(session.config, state, session.devices):
        session.console.print(line, soft_wrap=True)
    session.console.print(batching_line(session.config), soft_wrap=True)


def greedy_answers(session: Session, params: object, *, version: int) -> list[Answer]:
    """Greedy answers to the first held-out questions."""
    parts, judge = session.parts, session.prepared.judge_heldout
    prompts = parts.prompts.heldout[:SHOWN_ANSWERS]
    if not prompts:
        return []
    if parts.evaluator.version != version:
        parts.evaluator.publish(params, version)
    greedy = replace(parts.evaluation_sampling, greedy=True, group_size=1)
    groups = parts.evaluator.generate(prompts, greedy, stream_seed(parts.seed, "shown", 0))
    with not_counted(session):
        return from_first(
            lambda: [Answer(text, reward > 0) for text, reward in judge.shown(groups)]
        )


def finish(session: Session, state: LoopState, before: Sequence[Answer]) -> None:
    """Saves the model, draws the report and says where everything is."""
    run, prepared, console = session.run, session.prepared, session.console
    policy = state.train.whole()
    whole = fetch(replace(state.train, opt_state=()), everywhere=False)
    on_first(lambda: save(session, whole))
    after = greedy_answers(session, policy, version=state.step)
    if not is_first():
        return
    examples = session.prepared.heldout[:SHOWN_ANSWERS]
    samples = [
        Sample(prompt_text(example.prompt), gold_text(example), *answers)
        for example, *answers in zip(examples, before, after, strict=True)
    ]
    config = as_json(session.config)
    counts = counted(config, run.read_metrics(), prepared.left_out, outcomes(session))
    write_report(run, config, Told(session.command.whole, title(session.config), samples, counts))
    console.print(summary_table(run.read_metrics()))
    console.print(reward_line(run.read_metrics()))
    if state.skipped:
        console.print(f"[yellow]{state.skipped} updates were skipped, as they were not finite[/]")
    console.print(f"peak memory {peak_gib():.2f} GiB")
    console.print(
        f"model   {run.model}\nmetrics {run.metrics}\nreport  {run.report}", soft_wrap=True
    )


def save(session: Session, train: TrainState) -> None:
    """Writes the model's folder, and the adapters' where there are any."""
    run, config = session.run, session.config
    save_model(run.model, session.decoder, train.whole(), session.prepared.tokenizer)
    if config.lora.rank is not None:
        base = (config.model.path or run.initial).resolve()
        save_adapter(run.adapter, train.params, alpha=config.lora.alpha, base=base)


def prompt_text(prompt: Prompt) -> str:
    """A prompt as the report shows it."""
    return prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)


def gold_text(example: Example) -> str:
    """The answer that rewards compare with, where there is one."""
    return str(example.columns.get("answer", ""))


def reward_line(records: Sequence[Record]) -> str:
    """How fast rewards were, while there was something to judge, and what they could not judge."""
    last = records[-1]
    speed, failed = last.get("reward/completions_per_second"), last.get("reward/failed", 0)
    if speed is None:
        return "rewards: nothing was judged"
    return f"rewards: {speed:,.0f} completions/s while judging, {failed:,.0f} not judged"


def peak_gib() -> float:
    """The process's largest resident size so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20  # bytes there, KiB here


def resume_command(session: Session) -> str:
    """The command that goes on with a run."""
    return f"{session.command.program} --run-dir {shlex.quote(str(session.run.path))} --resume"
