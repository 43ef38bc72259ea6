"""The main study on the real server: the same weights at the start, the same score at the end."""

from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from ogrpo.config.schedule import Schedule
from ogrpo.loop import start, train
from ogrpo.policy import save_pretrained
from ogrpo.rollout.vllm import ServerOptions
from ogrpo.serving.bridge import connect_policy
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.server.conftest import RealServer

CONFIG = main_study(schedule=Schedule(steps=40, sync_interval=2, prompts=16, evaluate_every=40))


def test_the_default_study_learns_alike_from_the_real_server(tmp_path):
    longest = CONFIG.longest_prompt + CONFIG.longest_completion
    sizes = ("--max-model-len", str(longest), "--max-num-seqs", "128")
    with closing(prepare(CONFIG)) as prepared:
        tokenizer = prepared.tokenizer
        decoder, params = make_model(prepared, Console(quiet=True))
        parts = make_parts(prepared.config, prepared, decoder)

        def run(parts):
            # The update donates the trainer's buffers, and both runs start from the same parameters.
            state = start(parts.learner.init(jax.tree.map(jnp.copy, params)), parts)
            return [record for _, record in train(state, parts)]

        save_pretrained(tmp_path / "policy", decoder, params)
        tokenizer.save(tmp_path / "policy")
        with (
            RealServer(tmp_path / "policy", tmp_path / "log", *sizes).running() as server,
            connect_policy(
                ServerOptions(url=(server.url,)),
                decoder,
                eos_id=tokenizer.eos_id,
                max_length=longest,
            ) as engine,
        ):
            real = run(replace(parts, collection=replace(parts.collection, engine=engine)))
            metrics = engine.metrics()
        embedded = run(parts)
    base, last, reference = real[0], real[-1], embedded[-1]
    print(
        f"Pass@1 sampled: base {base['pass@1/sampled']:.3f}, "
        f"vLLM {last['pass@1/sampled']:.3f} [{last['pass@1/sampled/low']:.3f}, "
        f"{last['pass@1/sampled/high']:.3f}], embedded {reference['pass@1/sampled']:.3f} "
        f"[{reference['pass@1/sampled/low']:.3f}, {reference['pass@1/sampled/high']:.3f}]"
    )
    print({name: round(value, 4) for name, value in metrics.items()})
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
