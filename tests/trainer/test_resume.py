"""A resumed run holds no more than it did before it was stopped, and goes on counting."""

import gc
from contextlib import closing
from dataclasses import replace

import jax
import pytest
from rich.console import Console

from ogrpo.report.counted import counted
from ogrpo.report.run_dir import RunDir
from ogrpo.trainer import Schedule
from ogrpo.trainer.build import find_devices, make_parts
from ogrpo.trainer.config import Checkpointing, Data, Evaluation, Model, Rollout
from ogrpo.trainer.config_update import Lora, Region
from ogrpo.trainer.model import make_model
from ogrpo.trainer.prepare import prepare
from ogrpo.trainer.presets import main_study
from ogrpo.trainer.run import carry_out
from ogrpo.trainer.session import Invocation, Session, as_json, outcomes

CONFIG = main_study(
    data=Data(train=16),
    model=Model(random="tiny"),
    rollout=Rollout(group_size=2, max_tokens=4),
    schedule=Schedule(steps=2, prompts=2, evaluate_every=100),
    evaluation=Evaluation(prompts=2, gradient_variance=False),
    checkpoint=Checkpointing(every=1),
)


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def carried(config, run):
    """Bytes that live at each update beyond those before, first parameters, the report's counts."""
    with closing(prepare(config)) as prepared:
        config, before, held = prepared.config, live_bytes(), []
        decoder, params = make_model(prepared, Console(quiet=True))
        devices = find_devices(config, decoder)
        parts = make_parts(config, prepared, decoder, devices=devices, experience=run.experience)

        def update(*arguments):
            held.append(live_bytes() - before)
            return parts.update(*arguments)

        session = Session(
            config,
            run,
            prepared,
            decoder,
            devices,
            replace(parts, update=update),
            Console(quiet=True),
            Invocation("train", "train"),
        )
        assert carry_out(session, params) is None
    counts = counted(as_json(config), run.read_metrics(), prepared.left_out, outcomes(session))
    return held, params, dict(counts)


def total(counts, what):
    return sum(int(count) for label, count in counts.items() if label.startswith(f"{what} judged"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"lora": Lora(rank=2)}, {"trust_region": Region(kind="clip")}]
)
def test_a_resumed_run_holds_one_train_state_and_goes_on_counting(tmp_path, changes):
    run = tmp_path / "run"
    config = replace(CONFIG, run_dir=run, **changes)
    begun, _, counts = carried(config, RunDir.create(run))
    longer = replace(config, resume=True, schedule=replace(config.schedule, steps=4))
    assert (total(counts, "completions"), total(counts, "evaluation answers")) == (8, 12)
    resumed, params, counts = carried(longer, RunDir.reopen(run))
    assert (total(counts, "completions"), total(counts, "evaluation answers")) == (16, 18)
    # The rewards' own counters too: of them the report tells what could not be judged.
    records = RunDir.reopen(run).read_metrics()
    assert [record["reward/completions"] for record in records[1:]] == [4, 8, 12, 16]
    assert len(begun) == len(resumed) == 2
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert max(resumed) < max(begun) + size / 20
    trained = config.lora.rank is None
    assert all(leaf.is_deleted() == trained for leaf in jax.tree.leaves(params))
