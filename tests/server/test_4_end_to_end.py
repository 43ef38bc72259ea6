"""The main study on the real server: the same weights at the start, the same score at the end."""

import dataclasses
from contextlib import closing
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from ogrpo.config.schedule import Schedule
from ogrpo.loop import start, train
from ogrpo.policy import save_pretrained
from ogrpo.serving.bridge import connect_policy
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.server.conftest import RealServer

CONFIG = main_study(schedule=Schedule(steps=40, sync_interval=2, prompts=16, evaluate_every=40))


@pytest.fixture(scope="module")
def study():
    with closing(prepare(CONFIG)) as prepared:
        decoder, params = make_model(prepared, Console(quiet=True))
        parts = make_parts(prepared.config, prepared, decoder)
        yield SimpleNamespace(prepared=prepared, decoder=decoder, params=params, parts=parts)


@pytest.fixture(scope="module")
def engine(study, tmp_path_factory):
    folder, log = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("logs") / "log"
    save_pretrained(folder, study.decoder, study.params)
    study.prepared.tokenizer.save(folder)
    longest = CONFIG.longest_prompt + CONFIG.longest_completion
    tokenizer = study.prepared.tokenizer
    server = RealServer(folder, log, "--max-model-len", str(longest), "--max-num-seqs", "128")
    with (
        server.running(),
        connect_policy(
            [server.url],
            study.decoder,
            eos_id=tokenizer.eos_id,
            max_length=longest,
            texts=tokenizer.sample_texts(),
        ) as engine,
    ):
        yield engine


def run(study, parts):
    # The update donates the trainer's buffers, and the next run starts from the same parameters.
    params = jax.tree.map(jnp.copy, study.params)
    state = start(parts.learner.init(params), parts)
    return [record for _, record in train(state, parts)]


def test_the_default_study_learns_alike_from_the_real_server(study, engine):
    collection = dataclasses.replace(study.parts.collection, engine=engine)
    real = run(study, dataclasses.replace(study.parts, collection=collection))
    embedded = run(study, study.parts)
    base, last, reference = real[0], real[-1], embedded[-1]
    print(
        f"Pass@1 sampled: base {base['pass@1/sampled']:.3f}, "
        f"vLLM {last['pass@1/sampled']:.3f} [{last['pass@1/sampled/low']:.3f}, "
        f"{last['pass@1/sampled/high']:.3f}], embedded {reference['pass@1/sampled']:.3f} "
        f"[{reference['pass@1/sampled/low']:.3f}, {reference['pass@1/sampled/high']:.3f}]"
    )
    print({name: round(value, 4) for name, value in engine.metrics().items()})
    steps = real[1:]
    # Right after a push the trainer's policy is the server's: every ratio is one.
    fresh = [r for n, r in enumerate(steps) if n % CONFIG.schedule.sync_interval == 0]
    stale = [r for n, r in enumerate(steps) if n % CONFIG.schedule.sync_interval]
    assert max(r["mismatch"] for r in fresh) < 1e-4
    assert min(r["ess"] for r in fresh) > 0.999
    assert np.mean([r["mismatch"] for r in stale]) > 1e-3
    assert {r["staleness"] for r in fresh} == {0.0}
    assert {r["staleness"] for r in stale} == {1.0}
    assert engine.counts["sync/count"] == CONFIG.schedule.steps // CONFIG.schedule.sync_interval
    assert last["pass@1/sampled/low"] > base["pass@1/sampled/high"]
    assert last["pass@1/sampled/low"] < reference["pass@1/sampled/high"]
    assert reference["pass@1/sampled/low"] < last["pass@1/sampled/high"]
