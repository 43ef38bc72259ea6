"""A run from the first prompt to the report."""

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from ogrpo.config.method import check
from ogrpo.config.train import TrainConfig
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.hosts import everyone, fetch, from_first, is_first, on_first, several
from ogrpo.learner.memory import give_back_after_compiling
from ogrpo.loop.evaluate import withdraw
from ogrpo.loop.parts import Record
from ogrpo.loop.state import LoopState
from ogrpo.loop.training import train
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.guards import Guards
from ogrpo.report.progress import display
from ogrpo.report.run_dir import MetricsWriter, RunDir, RunDirError
from ogrpo.report.run_page import keep
from ogrpo.report.trackers import tracking
from ogrpo.run.diagnose import dumping
from ogrpo.run.ending import Judged, finish, first_page, greedy_answers
from ogrpo.run.interrupt import StopRequest, handling, interrupt, noting, stop_on_signal
from ogrpo.run.keeper import Keeper
from ogrpo.run.resuming import begin
from ogrpo.run.session import Callback, Clock, Invocation, Session, TrainResult, as_json, compiled
from ogrpo.setup.build import find_devices, make_parts
from ogrpo.setup.cache import keep_compiled_programs
from ogrpo.setup.devices import DTYPES, open_mesh
from ogrpo.setup.find_task import check_sources
from ogrpo.setup.model import save_model, with_folder
from ogrpo.setup.prepare import judge_lines, prepare
from ogrpo.setup.processes import (
    SharedEngine,
    check_alike,
    check_processes,
    same_model,
    shared_parts,
    start_processes,
)
from ogrpo.setup.servers import connect
from ogrpo.system.terminal import shown
from ogrpo.tasks import Task

T = TypeVar("T")
Steps = Generator[tuple[LoopState, Record], None, T]
"""The state after each step and the step's record; then a result."""


def run(config: TrainConfig, console: Console, command: Invocation) -> TrainResult:
    """Trains, evaluates, saves and reports: `run_steps` to its end."""
    steps = run_steps(config, console, command)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def run_steps(
    config: TrainConfig,
    console: Console,
    command: Invocation,
    task: Task | None = None,
    callbacks: Sequence[Callback] = (),
) -> Steps[TrainResult]:
    """Trains, evaluates, saves and reports, yielding after each step.

    A caller that closes it before its end leaves a run that can be resumed, without a report.

    Args:
      console: shows its lines.
      command: goes on with the run once it was stopped.
      task: in place of the one that the config names.
      callbacks: called with each step's state and record.

    Raises:
      ValueError: an option or the task is wrong; nothing was computed yet.
      KeyboardInterrupt: a signal came outside of the loop, or a second one inside.
      BaseException: whatever ended the loop; the state is saved where it is whole, and a note of
        the error says how to go on.
    """
    clock = Clock()
    unbegun = "no step was taken, and no state is lost; begin again with"
    with ExitStack() as stack:
        stack.enter_context(handling(interrupt))
        with noting(f"{unbegun}:\n  {command.whole}"):
            session, params = _prepare_session(stack, config, console, command, task, clock)
        session = replace(session, callbacks=(*session.callbacks, *callbacks), clock=clock)
        return TrainResult(session.run.path, (yield from carry_out(session, params)))


def _prepare_session(
    stack: ExitStack,
    config: TrainConfig,
    console: Console,
    command: Invocation,
    task: Task | None,
    clock: Clock,
) -> tuple[Session, Params]:
    """Returns a run's session and its first parameters; `stack` closes what it opens."""
    start_processes(config.processes)
    console = console if is_first() else Console(quiet=True)
    keep_compiled_programs()
    give_back_after_compiling()
    check_sources(config, task)
    if config.push_to_hub is not None:
        from ogrpo.models.hub import check_push

        check_push(config.push_to_hub)
    open_mesh(config.mesh)  # refused before anything is written
    config = replace(config, model=with_folder(config.model, console))
    prepared = prepare(config, task)
    stack.callback(prepared.close)
    config = prepared.config
    check(config)
    check_processes(config)
    check_alike(prepared)
    opened = from_first(lambda: stack.enter_context(open_run(config, command, console)).path)
    run = RunDir(opened)
    console.print(f"run directory {run.path}", markup=False, soft_wrap=True)
    names = config.track if is_first() else ()
    warn = partial(console.print, style="yellow", markup=False, soft_wrap=True)
    track = stack.enter_context(tracking(names, run.path, as_json(config), warn))
    logged = [prepared.logged.title] if prepared.logged is not None and config.begins else []
    for line in (*judge_lines(prepared.task), *logged):
        console.print(shown(line), markup=False, highlight=False, soft_wrap=True)
    for label, count in prepared.left_out:
        if count:
            console.print(f"{count} {label}", style="yellow", markup=False)
    clock.mark("task, tokenizer and rewards made ready")
    decoder, params = same_model(prepared, console)
    clock.mark("model loaded, or made by a warm start")
    params = kept_base(config, run, decoder, params, prepared.tokenizer)
    devices = find_devices(config, decoder)
    params, engine = devices.place_params(params), None
    if config.rollout.url:
        served = params if config.model.path else fetch(params, everywhere=False)
        arguments = (config, run, decoder, served, prepared.tokenizer, console)
        servers = on_first(lambda: stack.enter_context(connect(*arguments)))
        engine = SharedEngine(servers) if several() else servers
    parts = make_parts(
        config, prepared, decoder, engine, devices=devices, experience=run.experience
    )
    parts = shared_parts(parts)
    trackers = (lambda _, record: track(record),)
    session = Session(config, run, prepared, decoder, devices, parts, console, command, trackers)
    return session, params


@contextmanager
def open_run(config: TrainConfig, command: Invocation, console: Console) -> Iterator[RunDir]:
    """Opens the run's folder, new or picked up again, this process's alone within the block.

    Raises:
      RunDirError: the folder cannot be used, or another process has it.
    """
    if config.goes_on and config.run_dir is None:
        raise RunDirError("--resume needs the --run-dir of the run to go on with")
    stamp, name = f"{datetime.now():%Y%m%d-%H%M%S}", Path(config.task).stem
    path = config.run_dir or Path("runs") / f"{name}-{stamp}"
    open_folder = RunDir.reopen if config.goes_on else RunDir.create
    run = open_folder(path)
    with run.held(command.whole) as warning:
        if warning is not None:
            console.print(warning, style="yellow", markup=False, soft_wrap=True)
        open_folder(path)  # once more: another process may have begun and ended in between
        yield run


def kept_base(
    config: TrainConfig,
    run: RunDir,
    decoder: DecoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
) -> Params:
    """Returns the weights beneath adapters; the run keeps them where no folder of the user's does.

    Checkpoints and `adapter/` are nothing without them, and making them again, by other versions or
    on another machine, need not give the same bits.
    """
    if config.lora.rank is None or config.model.path is not None:
        return params
    if config.goes_on and (run.initial / "config.json").is_file():
        return load_pretrained(run.initial, DTYPES[config.model.dtype])[1]
    on_first(lambda: save_model(run.initial, decoder, params, tokenizer))
    return params


def carry_out(session: Session, params: Params) -> Steps[signal.Signals | None]:
    """Runs what is ready to run; returns the signal that stopped it, if one did."""
    if not session.config.goes_on:
        on_first(lambda: session.run.write_config(as_json(session.config)))
    untrained = "no step was taken since the run was started, and no state is lost; go on with"
    with noting(f"{untrained}:\n  {session.resume_command}"):
        session.say("compiling the sampler, and answering the first held-out questions ...")
        before = greedy_answers(session, params, version=0)
        withdraw(session.parts.evaluator.engine)
        session.clock.mark("first greedy answers")
    state, stop = yield from train_to_end(session, params, before)
    session.clock.mark("steps: rollouts, updates, evaluations, checkpoints")
    with noting(f"training is saved; go on with:\n  {session.resume_command}", BaseException):
        finish(session, state, before)
    if stop.signal is not None:
        session.say(f"stopped by {stop.signal.name} after step {state.step}; go on with:")
        session.say(f"  {session.resume_command}")
    return stop.signal


def train_to_end(
    session: Session, params: Params, before: Judged
) -> Steps[tuple[LoopState, StopRequest]]:
    """Runs the loop, leaving a metrics record a step and a checkpoint now and then.

    Args:
      params: the policy before the first step.
      before: its answers to some held-out prompts.

    Raises:
      GuardError: a guard rail ended it, as the config asks for.
    """
    config, console, run = session.config, session.console, session.run
    every, kept, steps = config.checkpoint.every, config.checkpoint.keep, config.schedule.steps

    def notify(name: str) -> None:
        console.print(f"{name}: stopping after this step; once more to stop at once")

    with Checkpoints(run.checkpoints, keep=kept) as checkpoints, stop_on_signal(notify) as stop:
        state = begin(session, params, checkpoints)
        if config.goes_on:  # not before it is accepted
            on_first(lambda: run.write_config(as_json(config)))
        on_first(lambda: keep(run, first_page(session)))
        guards = Guards(run.read_metrics())
        records = MetricsWriter(run.metrics if is_first() else os.devnull)
        with records as metrics, display(console, steps, state.step, compiled) as show:
            keeper = Keeper(session, checkpoints, metrics, state)
            turns = train(state, session.parts, keeper.before_evaluation)
            with closing(turns), keeper.rescuing():  # saved first, and then the collector is closed
                for state, record in dumping(turns, run.path, as_json(config), session.decoder):
                    keeper.take(state, record)
                    if is_first():
                        show(record)
                        for callback in session.callbacks:
                            callback(state, record)
                    yield state, record
                    guard(session, guards, record, before)
                    signals = everyone(stop.signal)
                    agreed = next((each for each in signals if each is not None), None)
                    if stopping := agreed is not None:  # one that came since is for the next step
                        stop.signal = agreed
                    due = state.step % every == 0 and state.step > 0
                    if due or state.step == steps or stopping:
                        keeper.save()
                    if stopping:
                        turns.close()  # waits for calls under way, within the note of `rescuing`
                        break
    return state, stop


class GuardError(RuntimeError):
    """A guard rail ended the run, as `--strict` or `--stop-when-worse` asks for."""


def guard(session: Session, guards: Guards, record: Record, before: Judged) -> None:
    """Shows what the guard rails say of a step's record, and ends the run where it asks for that.

    Raises:
      GuardError: with the words of the guard rail; all processes raise it together.
    """
    config = session.config
    messages = guards.see(record) if is_first() else []
    for message in messages:
        answers = [f"\n  {text!r}" for text, _ in before[:2] if message.kind == "start"]
        greedy = "\ntwo greedy ones:" if answers else ""
        text = f"step {message.step}: {message.text}{greedy}{''.join(answers)}"
        session.say(text, style="yellow")
    ending = {"start": "--strict"} if config.strict else {}
    if config.stop_when_worse:
        ending |= {"no success": "--stop-when-worse", "fall": "--stop-when-worse"}
    if not ending:
        return
    reasons = [f"{ending[m.kind]} ends the run: {m.text}" for m in messages if m.kind in ending]
    if reason := from_first(lambda: next(iter(reasons), None)):
        raise GuardError(reason)
