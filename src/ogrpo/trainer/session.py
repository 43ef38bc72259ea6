"""The main study: GRPO on grade-school mathematics, from the first prompt to the report."""

import resource
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.memory import give_back_after_compiling
from ogrpo.learner.state import TrainState
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.lora_files import save_adapter
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.counted import counted
from ogrpo.report.progress import display, summary_table
from ogrpo.report.run_dir import RunDir, RunDirError
from ogrpo.report.run_page import Answer, Sample, write_report
from ogrpo.rewards.math import MathReward, RewardCounts
from ogrpo.rollout.collection import CollectionError
from ogrpo.rollout.vllm import RolloutError
from ogrpo.trainer import LoopState, Parts, array_shapes, resume, start, stream_seed, train
from ogrpo.trainer.build import batching_line, find_devices, first_region, make_parts
from ogrpo.trainer.cache import keep_compiled_programs
from ogrpo.trainer.config import Gsm8k, check_sources, to_json
from ogrpo.trainer.devices import Devices, memory_lines, open_mesh
from ogrpo.trainer.interrupt import StopRequest, stop_on_signal
from ogrpo.trainer.method import check, title
from ogrpo.trainer.model import DTYPES, make_model, save_model
from ogrpo.trainer.prepare import Prepared, prepare
from ogrpo.trainer.servers import connect

INTERRUPTED = 130
SHOWN_ANSWERS = 12


@dataclass(frozen=True)
class Study:
    """A run that is ready to go."""

    config: Gsm8k
    run: RunDir
    prepared: Prepared
    decoder: DecoderConfig
    parts: Parts
    console: Console


def open_run(config: Gsm8k) -> RunDir:
    """The run's folder, new or picked up again."""
    if config.resume:
        if config.run_dir is None:
            raise RunDirError("--resume needs the --run-dir of the run to go on with")
        return RunDir.reopen(config.run_dir)
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    return RunDir.create(config.run_dir or Path("runs") / f"gsm8k-{stamp}")


def as_json(config: Gsm8k) -> dict:
    """The config as it is written into the run's folder."""
    values = {"study": "gsm8k", **to_json(config)}
    return {key: value for key, value in values.items() if key not in ("run_dir", "resume")}


def run(config: Gsm8k, console: Console) -> int:
    """Trains, evaluates, saves and reports; returns the exit code."""
    keep_compiled_programs()
    give_back_after_compiling()
    check(config)
    check_sources(config)
    open_mesh(config.mesh)  # refused before anything is written
    folder = open_run(config)
    console.print(f"run directory {folder.path}", soft_wrap=True)
    prepared, problems = prepare(config)
    for label, count in prepared.left_out:
        if count:
            console.print(f"[yellow]{count} {label}[/]")
    with closing(prepared.reward), ExitStack() as stack:
        decoder, params = make_model(config, prepared.tokenizer, problems, console)
        params = kept_base(config, folder, decoder, params, prepared.tokenizer)
        params = find_devices(config, decoder).place_params(params)
        engine = None
        if config.rollout.url:
            engine = connect(config, folder, decoder, params, prepared.tokenizer, console)
            stack.enter_context(engine)
        parts = make_parts(config, prepared, decoder, engine, experience=folder.experience)
        study = Study(config, folder, prepared, decoder, parts, console)
        return carry_out(study, params)


def kept_base(
    config: Gsm8k, run: RunDir, decoder: DecoderConfig, params: Params, tokenizer: TextTokenizer
) -> Params:
    """The weights beneath adapters, kept by the run where no folder of the user's holds them.

    Checkpoints and `adapter/` are nothing without them, and making them again, by other versions or
    on another machine, need not give the same bits.
    """
    if config.lora.rank is None or config.model.path is not None:
        return params
    if config.resume and (run.initial / "config.json").is_file():
        return load_pretrained(run.initial, DTYPES[config.model.dtype])[1]
    save_model(run.initial, decoder, params, tokenizer)
    return params


def carry_out(study: Study, params: Params) -> int:
    """A run whose parts are ready; returns the exit code."""
    if not study.config.resume:
        study.run.write_config(as_json(study.config))
    before = greedy_answers(study, params)
    study.parts.evaluator.withdraw()
    state, stop = train_to_end(study, params)
    finish(study, state, before)
    if stop.signal is None:
        return 0
    study.console.print(f"stopped by {stop.signal.name} after step {state.step}; go on with:")
    study.console.print(f"  {resume_command(study.run.path)}", soft_wrap=True)
    return INTERRUPTED


def train_to_end(study: Study, params: Params) -> tuple[LoopState, StopRequest]:
    """Runs the loop, leaving a metrics record a step and a checkpoint now and then."""
    config, console = study.config, study.console
    keep, every, steps = config.checkpoint.keep, config.checkpoint.every, config.schedule.steps

    def notify(name: str) -> None:
        console.print(f"{name}: stopping after this step; once more to stop at once")

    with (
        Checkpoints(study.run.checkpoints, keep=keep) as checkpoints,
        stop_on_signal(notify) as stop,
    ):
        state = begin(study, params, checkpoints)
        if config.resume:  # not before it is accepted
            study.run.write_config(as_json(config))
        with study.run.metrics_writer() as metrics, display(console, steps, state.step) as shown:
            try:
                for turn in train(state, study.parts, config.schedule):
                    state, record = turn
                    metrics.write(record)
                    shown.show(record)
                    due = state.step % every == 0 and state.step > 0
                    if due or state.step == steps or stop:
                        checkpoints.save(state.step, state.arrays(), progress(study, state))
                        if not config.replay.keep:
                            kept = map(checkpoints.progress, checkpoints.steps)
                            state.buffer.prune(each["buffer"] for each in kept)
                    if stop:
                        break
            except (CollectionError, RolloutError) as error:  # the trainer's state is not lost
                checkpoints.save(state.step, state.arrays(), progress(study, state))
                command = resume_command(study.run.path)
                raise RolloutError(f"{error}\ngo on with:\n  {command}") from error
    return state, stop


def progress(study: Study, state: LoopState) -> dict[str, Any]:
    """A checkpoint's progress: the loop's, and how answers came out so far."""
    counts = {name: reward.counts._asdict() for name, reward in rewards(study).items()}
    return {**state.progress(), "judged": counts}


def rewards(study: Study) -> dict[str, MathReward]:
    """What counts outcomes, by what it judges."""
    prepared = study.prepared
    return {"training": prepared.reward, "evaluation": prepared.evaluation_reward}


def begin(study: Study, params: Params, checkpoints: Checkpoints) -> LoopState:
    """The first state, or the newest checkpoint's; the records after it will be written again."""
    devices = find_devices(study.config, study.decoder)
    step = checkpoints.latest if study.config.resume else None
    if step is not None:
        return resumed(study, params, checkpoints, step, devices)
    if study.config.resume:
        study.console.print("no checkpoint yet: starting over")
        study.run.rewind(-1)
    initial = replace(devices.init(params), region=first_region(study.config))
    describe(study, initial, devices)
    return start(initial, study.parts)


def resumed(
    study: Study, params: Params, checkpoints: Checkpoints, step: int, devices: Devices
) -> LoopState:
    """The state of a checkpoint, read in place of `params`: both at once may not fit.

    What stands beneath adapters is in no checkpoint, and stays.
    """
    shapes = devices.shapes(params)
    everywhere = shapes.updates.sharding
    region = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
        first_region(study.config),
    )
    shapes = replace(shapes, region=region)
    describe(study, shapes, devices)
    study.console.print(f"resuming after step {step}")
    study.run.rewind(step or -1)  # a loop at step 0 begins with that step's own record
    if not shapes.frozen:
        for leaf in jax.tree.leaves(params):
            leaf.delete()
    arrays, before = checkpoints.restore(step, array_shapes(shapes, study.parts))
    for name, reward in rewards(study).items():  # older checkpoints have no counts
        reward.counts = RewardCounts(**before.get("judged", {}).get(name, {}))
    return resume(arrays, before, study.parts, frozen=shapes.frozen)


def describe(study: Study, state: TrainState, devices: Devices) -> None:
    """Says what the algorithm is, what the train state takes, and how batches are laid out."""
    study.console.print(f"algorithm: {title(study.config)}", soft_wrap=True)
    for line in memory_lines(study.config, state, devices):
        study.console.print(line, soft_wrap=True)
    study.console.print(batching_line(study.config), soft_wrap=True)


def greedy_answers(study: Study, params: object) -> list[Answer]:
    """Greedy answers to the first held-out questions."""
    task, parts = study.prepared.task, study.parts
    prompts, golds = task.heldout.prompts[:SHOWN_ANSWERS], task.heldout.answers
    parts.evaluator.publish(params, 0)
    greedy = replace(parts.evaluation_sampling, greedy=True, group_size=1)
    groups = parts.evaluator.generate(prompts, greedy, stream_seed(parts.seed, "shown", 0))
    firsts = [group.completions[0] for group in groups]
    texts = [task.decode(c.token_ids) for c in firsts]
    judged = zip(texts, firsts, golds, strict=False)
    return [
        Answer(text, study.prepared.reward.judge(text, c.finish_reason, gold) == "correct")
        for text, c, gold in judged
    ]


def finish(study: Study, state: LoopState, before: Sequence[Answer]) -> None:
    """Saves the model, draws the report and says where everything is."""
    run, prepared, console = study.run, study.prepared, study.console
    policy = state.train.whole()
    save_model(run.model, study.decoder, policy, prepared.tokenizer)
    if study.config.lora.rank is not None:
        base = (study.config.model.path or run.initial).resolve()
        save_adapter(run.adapter, state.train.params, alpha=study.config.lora.alpha, base=base)
    after = greedy_answers(study, policy)
    samples = [
        Sample(problem.question, gold, *answers)
        for problem, gold, *answers in zip(
            prepared.heldout, prepared.task.heldout.answers, before, after, strict=False
        )
    ]
    write_report(
        run,
        as_json(study.config),
        command_line(),
        title(study.config),
        samples,
        counted(study.config, run, prepared),
    )
    console.print(summary_table(run.read_metrics()))
    console.print(f"peak memory {peak_gib():.2f} GiB")
    console.print(
        f"model   {run.model}\nmetrics {run.metrics}\nreport  {run.report}", soft_wrap=True
    )


def command_line() -> str:
    """The command as a user types it."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


def peak_gib() -> float:
    """The process's largest resident size so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20  # bytes there, KiB here


def resume_command(path: Path) -> str:
    """The command that goes on with a run."""
    return shlex.join(
        ["python", "-m", "experiments.run", "gsm8k", "--run-dir", str(path), "--resume"]
    )
