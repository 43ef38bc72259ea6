"""A sampler whose log-probs are not those of its weights is seen where the trainer knows better."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from ogrpo.config.schedule import Schedule
from ogrpo.loop.parts import MismatchLimit
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.vllm import RolloutError
from tests.run.small_run import CONFIG, go_with

SHIFT = 0.7


def shifted(engine):
    """An engine that says of each token that it was less likely than it was."""
    other = copy(engine)
    true = other.generate  # with the weights that the copy is given

    def lowered(drawn):
        return replace(drawn, log_probs=drawn.log_probs - np.float32(SHIFT))

    def generate(*request):
        groups = true(*request)
        return [replace(g, completions=tuple(map(lowered, g.completions))) for g in groups]

    other.generate = generate
    return other


@pytest.mark.slow
def test_shifted_log_probs_end_a_run_which_is_saved_and_without_the_limit_train_it(tmp_path):
    schedule = Schedule(steps=3, prompts=4, sync_interval=2, evaluate_every=100)
    config, faults = replace(CONFIG, schedule=schedule), {"collection.engine": shifted}
    folder = tmp_path / "run"
    with pytest.raises(RolloutError, match=r"of the embedded sampler are 0\.7 nats") as caught:
        go_with(folder, faults, config)
    assert "rollout.mismatch-limit is 0.3" in str(caught.value)
    assert "the state after step 1 is saved; go on with" in str(caught.value.__notes__)
    assert [r["step"] for r in RunDir(folder).read_metrics()] == [0, 1]
    # The same sampler, and nobody who asks.
    unlimited = replace(config.rollout, mismatch_limit=None)
    go_with(folder, faults, config, resume=True, rollout=unlimited)
    records = RunDir(folder).read_metrics()
    assert [r["step"] for r in records] == [0, 1, 2, 3]
    fresh = [r["mismatch"] for r in records[1:] if r["staleness"] == 0]
    assert len(fresh) == 2
    assert all(abs(m - SHIFT) < 1e-3 for m in fresh)


def test_servers_are_named():
    limit = MismatchLimit(0.3, ("http://gpu-1:8000", "http://gpu-2:8000"))
    limit.check(0.3, step=1)
    with pytest.raises(RolloutError, match=r"gpu-1:8000, http://gpu-2:8000 are 0\.31 nats"):
        limit.check(0.31, step=1)
