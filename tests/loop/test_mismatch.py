"""A server whose log-probs are not those of its weights is found where the trainer knows better."""

import threading
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Evaluation, Model, Rollout
from ogrpo.config.update import Optimizer
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.endpoint import Endpoint, Service
from ogrpo.rollout.vllm import RolloutError
from ogrpo.run.main import run
from ogrpo.run.session import Invocation
from ogrpo.serving.bridge import embedded_model
from ogrpo.setup.model import make_model, save_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.run.rewards import VARIED

SHIFT = 0.7
CONFIG = main_study(
    rewards=(VARIED,),
    data=Data(train=32),
    model=Model(random="tiny"),
    rollout=Rollout(group_size=4, max_tokens=8),
    schedule=Schedule(steps=3, prompts=4, sync_interval=2, evaluate_every=100),
    optimizer=Optimizer(warmup=0),
    evaluation=Evaluation(prompts=2, gradient_variance=False, token_samples=0),
)


class Shifted(Service):
    """Draws and proves as it should, and says of each token that it was less likely."""

    def _sample(self, prompts, options):
        return [
            replace(
                group,
                completions=tuple(
                    replace(drawn, log_probs=drawn.log_probs - np.float32(SHIFT))
                    for drawn in group.completions
                ),
            )
            for group in super()._sample(prompts, options)
        ]


@pytest.fixture
def config(tmp_path):
    """A run whose only server shifts its log-probs."""
    folder = tmp_path / "served"
    with closing(prepare(CONFIG)) as prepared:
        decoder, params = make_model(prepared, Console(quiet=True))
        tokenizer = prepared.tokenizer
        save_model(folder, decoder, params, tokenizer)
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    how = {"eos_id": tokenizer.eos_id, "batch_size": 4}
    model, first = embedded_model(str(folder), dtype="float32", decode_fn=decode, **how)
    endpoint = Endpoint(Shifted(model, first), port=0)
    thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
    thread.start()
    yield replace(
        CONFIG,
        run_dir=tmp_path / "run",
        model=Model(path=folder),
        rollout=replace(CONFIG.rollout, url=(endpoint.url,)),
    )
    endpoint.close()
    thread.join()


def train(config):
    run(config, Console(quiet=True), Invocation("t", "t"))


@pytest.mark.slow
def test_shifted_log_probs_end_a_run_which_is_saved_and_without_the_limit_train_it(config):
    with pytest.raises(RolloutError, match=rf"of {config.rollout.url[0]} are 0\.7 nats") as caught:
        train(config)
    assert "rollout.mismatch-limit is 0.3" in str(caught.value)
    assert "the state after step 1 is saved; go on with" in str(caught.value.__notes__)
    assert [r["step"] for r in RunDir(config.run_dir).read_metrics()] == [0, 1]
    # The same server, and nobody who asks.
    unlimited = replace(config.rollout, mismatch_limit=None)
    train(replace(config, resume=True, rollout=unlimited))
    records = RunDir(config.run_dir).read_metrics()
    assert [r["step"] for r in records] == [0, 1, 2, 3]
    fresh = [r["mismatch"] for r in records[1:] if r["staleness"] == 0]
    assert len(fresh) == 2
    assert all(abs(m - SHIFT) < 1e-3 for m in fresh)
