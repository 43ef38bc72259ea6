"""The untied policy on a server of two data-parallel ranks, with vLLM's own log-probs."""

import os
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import Broken, Refused, Unavailable, Unproven, push
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.weights import Store, WeightShare
from ogrpo.serving.bridge import make_score_fn, named_tensors
from tests.rollout.vllm import contract, updates, world

CONFIG = world.decoder(tied=False)
SEQUENCES = push.probe_sequences(world.VOCAB)


def test_raw_log_probs_serve_at_temperature_one_and_are_refused_elsewhere(alone):
    with contract.connect([alone.url], CONFIG) as engine:
        assert engine.capabilities[0].log_probs == "raw"
        contract.check_log_probs(engine, CONFIG, (1.0,))
        with pytest.raises(Refused, match="--logprobs-mode processed_logprobs"):
            engine.generate(world.PROMPTS, Sampling(0.7, 12, 4), 1)


@pytest.mark.parametrize("transport", ["folder", "url"])
def test_pushes_are_proven_one_after_the_other(alone, transport):
    with contract.connect([alone.url], CONFIG, transport=transport) as engine:
        contract.check_pushes(engine, CONFIG)


def test_a_missing_head_is_refused(alone, monkeypatch):
    head = "lm_head.weight"
    garbage = (lambda tensors: contract.without(tensors, head), f"lacks 1 tensors: {head}")
    with contract.connect([alone.url], CONFIG) as engine:
        contract.check_garbage(engine, CONFIG, garbage, monkeypatch)


def test_what_one_data_parallel_rank_cannot_read_none_installs(alone, tmp_path):
    """vLLM tells the answers of the first rank alone, and the second may be the one that fails."""
    params = [world.make_params(CONFIG, n) for n in range(2)]
    store, pulls = Store(tmp_path), count()
    with (
        closing(WeightShare(store.folder)) as share,
        contract.connect([alone.url], CONFIG) as engine,
    ):
        assert engine.capabilities[0].ranks == 2
        engine.publish(params[0], 1)
        release = store.write(named_tensors(CONFIG, params[1]), 2)

        class Failing(share._server.RequestHandlerClass):
            """Gives the tensors to the first of the two that pull them."""

            def do_GET(self):
                if self.path.endswith(".safetensors") and next(pulls) == 1:
                    self.send_error(503)
                else:
                    super().do_GET()

        share._server.RequestHandlerClass = Failing
        with pytest.raises(Unavailable, match=r"its log says why|503"):
            updates.on(alone.url, updates.loading(release, share))
        assert next(pulls) > 1
        for seed in range(4):  # enough requests that both ranks answer some
            groups = engine.generate(world.PROMPTS, contract.SAMPLING, seed)
            assert world.worst_gap(CONFIG, params[0], groups) < contract.EXACT


def scratch_of(worker):
    """The folder in which a worker keeps what it has pulled: it holds a lock on a file in it."""
    links = [os.readlink(f"/proc/{worker}/fd/{fd}") for fd in os.listdir(f"/proc/{worker}/fd")]
    (lock,) = [link for link in links if "ogrpo-sync-" in link]
    return Path(lock).parent


def test_a_rank_that_alone_did_not_install_is_broken_and_found_by_the_probe(alone, tmp_path):
    params = [world.make_params(CONFIG, n) for n in range(2)]
    store = Store(tmp_path)
    release = store.write(named_tensors(CONFIG, params[1]), 2)
    scores = [np.asarray(x) for x in make_score_fn(CONFIG)(params[1], SEQUENCES)]
    scratch = scratch_of(alone.member("EngineCore_DP1", "Worker"))
    update = ServerApi.update_weights

    async def lost(api, body, *, seconds):
        if body.get("install"):
            for file in scratch.glob("*.safetensors"):
                file.unlink()
        await update(api, body, seconds=seconds)

    def prove(api, capabilities):
        return push.prove(api, capabilities, push.Target(release, SEQUENCES, scores, 1e-3))

    with (
        closing(WeightShare(store.folder)) as share,
        contract.connect([alone.url], CONFIG) as engine,
    ):
        engine.publish(params[0], 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServerApi, "update_weights", lost)
            with pytest.raises(Broken, match="may be half loaded"):
                updates.on(alone.url, updates.loading(release, share))
        with pytest.raises(Unproven, match="data-parallel rank 1, scores the probe"):
            updates.on(alone.url, prove)
        assert updates.on(alone.url, updates.loading(release, share)) == 2 * release.bytes
        assert updates.on(alone.url, prove) < contract.EXACT
