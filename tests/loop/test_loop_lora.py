"""The loop where adapters alone are trained."""

import jax
import numpy as np
import pytest

from ogrpo.config.update import Knobs, Lora, Optimizer
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.loop import check_frozen, first_arrays, resume
from tests.loop.test_loop import Run, deterministic, equal, schedule

pytestmark = pytest.mark.slow

LORA = {"lora": Lora(rank=3, alpha=12.0), "knobs": Knobs(beta=0.1)}
CHANGES = {
    **LORA,
    "schedule": schedule(sync_interval=3),
    "optimizer": Optimizer(learning_rate=0.02),
}


@pytest.fixture(scope="module")
def run():
    return Run(**CHANGES)


@pytest.fixture(scope="module")
def turns(run):
    return run.turns()


def test_the_policy_learns_and_the_weights_beneath_it_stay(run, turns):
    last, records = turns[-1][0], [record for _, record in turns]
    begun = run.train_state()
    assert equal(last.train.frozen, begun.frozen)
    assert not equal(last.train.params, begun.params)
    assert last.server_version == 3
    assert not equal(last.server, begun.params)
    assert equal(last.reference, begun.params)
    fresh = [r for r in records if r["staleness"] == 0]
    assert len(fresh) == 2
    assert all(r["mismatch"] < 1e-5 and r["ess"] > 1 - 1e-5 for r in fresh)
    assert records[2]["mismatch"] > 1e-4  # the policy moves
    assert records[-1]["kl/pi_ref"] > 1e-5
    assert records[3]["grad_variance"] > 0
    assert records[1]["flops/update"] == run.parts.costs.update(None) + run.parts.costs.score(None)
    full = Run(schedule=schedule(sync_interval=3)).parts.costs
    assert run.parts.costs.update(None) < 0.8 * full.update(None)


def test_a_checkpoint_holds_adapters_and_resumes_to_the_same_numbers(run, turns, tmp_path):
    stopped = run.like(tmp_path / "experience")
    *_, (_, state, _) = stopped.steps(2)
    weights = {leaf.size for leaf in jax.tree.leaves(stopped.params)}
    assert max(leaf.size for leaf in jax.tree.leaves(state.arrays())) < max(weights)
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(state.step, state.arrays(), state.progress())
        begun = stopped.train_state()
        arrays, progress = checkpoints.restore(2, first_arrays(begun, stopped.parts))
    resumed = resume(arrays, progress, stopped.parts, frozen=begun.frozen)
    rest = stopped.turns(resumed)
    assert [deterministic(r) for _, r in rest] == [deterministic(r) for _, r in turns[3:]]
    assert equal(rest[-1][0].train.params, turns[-1][0].train.params)
    other = jax.tree.map(np.array, begun.frozen)
    other["norm"]["weight"][0] += 1e-3
    with pytest.raises(ValueError, match=r"weights beside the adapters are not those.*started"):
        check_frozen(other, progress)
