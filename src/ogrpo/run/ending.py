"""The end of a run: the model, the report, and where everything is."""

import resource
import sys
from dataclasses import replace
from pathlib import Path

import ogrpo
from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig
from ogrpo.learner.hosts import fetch, from_first, is_first, on_first
from ogrpo.learner.state import TrainState
from ogrpo.loop.parts import stream_seed
from ogrpo.loop.state import LoopState
from ogrpo.models.known import licence_of
from ogrpo.policy.lora import save_adapter
from ogrpo.report.model_card import CardData, write_card
from ogrpo.report.progress import summary_table
from ogrpo.report.run_page import Answer, PageData, Sample, certified, counted, write_report
from ogrpo.run.resuming import origin
from ogrpo.run.session import Session, as_json, not_counted, outcomes
from ogrpo.setup.model import save_model
from ogrpo.system.extras import commit_of
from ogrpo.system.files import read_object
from ogrpo.system.terminal import shown
from ogrpo.tasks.example import prompt_texts

SHOWN_ANSWERS = 12
"""On the page; the console has the first two."""
Judged = list[tuple[str, dict[str, float]]]
"""Texts and their rewards by name, the sum as ""."""


def greedy_answers(session: Session, params: object, *, version: int) -> Judged:
    """Draws greedy answers to the first held-out questions."""
    parts, judge = session.parts, session.prepared.judge_heldout
    prompts, engine = parts.prompts.heldout[:SHOWN_ANSWERS], parts.evaluator.engine
    if not prompts:
        return []
    if engine.version != version:
        engine.publish(params, version)
    greedy = replace(parts.evaluator.sampling, greedy=True, group_size=1)
    groups = engine.generate(prompts, greedy, stream_seed(parts.seed, "shown", 0))
    with not_counted(session):
        return from_first(lambda: judge.shown(groups))


def finish(session: Session, state: LoopState, before: Judged) -> None:
    """Saves the model, draws the report and says where everything is."""
    run, prepared, console = session.run, session.prepared, session.console
    policy = state.train.whole()
    whole = fetch(replace(state.train, opt_state=()), everywhere=False)
    on_first(lambda: save(session, whole))
    after = greedy_answers(session, policy, version=state.step)
    if not is_first():
        return
    config, records, samples = as_json(session.config), run.read_metrics(), []
    by = next((r["heldout/by"] for r in reversed(records) if r.get("heldout/by")), "")
    for example, *judged in zip(prepared.heldout[:SHOWN_ANSWERS], before, after, strict=True):
        answers = [Answer(answer, rewards.get(by, 0) > 0) for answer, rewards in judged]
        text = "\n".join(prompt_texts(example.prompt))
        samples.append(Sample(text, str(example.columns.get("answer", "")), *answers))
    counts = counted(config, records, prepared.left_out, outcomes(session))
    seconds = session.clock.split()
    page = replace(first_page(session), samples=samples, counts=counts, seconds=seconds)
    write_report(run, config, page)
    path = session.config.model.path
    base, licence = (None, None) if path is None else licence_of(path)
    card = CardData(
        name=(session.config.push_to_hub or run.path.resolve().name).rpartition("/")[2],
        method=session.title,
        source=algorithm(session.config).source,
        data=prepared.task.name,
        command=page.command,
        base=base,
        licence=licence,
        provenance=page.provenance,
    )
    write_card(run.model, card, records)
    console.print(summary_table(records))
    for sample in samples[:2]:
        texts = [f"question: {sample.question}"]
        for when, answer in (("before", sample.before), ("after", sample.after)):
            texts.append(f"{when}, {'right' if answer.right else 'wrong'}: {answer.text}")
        for line in (shown(" ".join(text.split())) for text in texts):
            session.say(f"{line[:157]}..." if len(line) > 160 else line)
    last = records[-1]
    speed, failed = last.get("reward/completions_per_second"), last.get("reward/failed", 0)
    judged = "nothing was judged"
    if speed is not None:
        judged = f"{speed:,.0f} completions/s while judging, {failed:,.0f} not judged"
    console.print(f"rewards: {judged}")
    if (delta := config["certificate"]["delta"]) is not None:
        label, periods = certified(delta, records)[0]
        console.print(f"{periods} {label}")
    if state.skipped:
        session.say(f"{state.skipped} updates were skipped, as they were not finite")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
    console.print(f"peak memory {peak / 2 ** (30 if sys.platform == 'darwin' else 20):.2f} GiB")
    session.say(f"model   {run.model}\nmetrics {run.metrics}\nreport  {run.report}")
    if state.step == session.config.schedule.steps and (name := session.config.push_to_hub):
        from ogrpo.models.hub import to_hub

        session.say(f"hub     {to_hub(run.model, name)}")


def first_page(session: Session) -> PageData:
    """Returns what a run's page shows from its beginning on, with what the run was made of."""
    made = origin(session.prepared)
    devices = made["devices"]
    provenance = [
        ("source of ogrpo", commit_of(Path(ogrpo.__file__).parent)),
        *made["versions"].items(),
        ("devices", f"{devices['count']} x {devices['kind']}, {devices['processes']} processes"),
        *((f"SHA-256 of the {what}", digest) for what, digest in made["data"].items()),
        ("SHA-256 of the configuration", made["config_sha256"]),
    ]
    command, kept = shown(session.command.whole), session.run.page_data
    if session.config.goes_on and kept.is_file():
        try:
            before = read_object(kept)["command"]
            command = before if f"\n{before}".endswith(f"\n{command}") else f"{before}\n{command}"
        except (KeyError, ValueError) as error:
            session.say(f"the page lacks earlier commands: {kept} is damaged: {error}")
    defaults = as_json(TrainConfig())
    return PageData(command, session.title, provenance=provenance, defaults=defaults)


def save(session: Session, train: TrainState) -> None:
    """Writes the model's folder, and the adapters' where there are any."""
    run, config = session.run, session.config
    save_model(run.model, session.decoder, train.whole(), session.prepared.tokenizer)
    if config.lora.rank is not None:
        base = (config.model.path or run.initial).resolve()
        save_adapter(run.adapter, train.params, alpha=config.lora.alpha, base=base)
