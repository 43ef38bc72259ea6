"""The reference policy in the host's memory: the same run, and where its arrays are."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from rich.console import Console

from ogrpo.cli.options import parse
from ogrpo.config.method import check
from ogrpo.config.train import Lora, TrainConfig
from ogrpo.config.update import Optimizer
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.memory import HOST
from ogrpo.loop import array_shapes, resume, snapshot, start, train
from ogrpo.setup.build import find_devices, make_parts
from ogrpo.setup.devices import memory_lines
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from tests.loop.walk import KL, base_of

pytestmark = pytest.mark.slow

STAGES = {**KL, "schedule.steps": 4, "schedule.stages": 2, "evaluation.prompts": 1}


@cache
def made():
    prepared = prepare(base_of(STAGES))
    return prepared, *make_model(prepared, Console(quiet=True))


def begun(offload):
    """Parts and first train state of a run that swaps its reference half-way."""
    prepared, decoder, params = made()
    optimizer = replace(prepared.config.optimizer, offload=offload)
    parts = make_parts(replace(prepared.config, optimizer=optimizer), prepared, decoder)
    return parts, parts.learner.init(snapshot(params))


def lies(tree):
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


def same(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)


def test_the_reference_is_on_the_host_alone_through_every_stage():
    # That the numbers stay the same is one of `test_every_option`'s cases.
    parts, first = begun("reference")
    states = [start(first, parts)]
    for state, record in train(states[0], parts):
        states.append(state)
        assert record["step"] == 0 or record["kl/pi_ref"] is not None
    assert all(lies(state.reference) == {HOST} for state in states)
    assert not same(states[0].reference, states[-1].reference)
    assert lies((states[-1].train, states[-1].server)) == {"device"}


def test_a_checkpoint_brings_it_back_to_either_memory(tmp_path):
    parts, first = begun("both")
    state = start(first, parts)
    assert lies(state.train.opt_state) == lies(state.reference) == {HOST}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state.arrays(), state.progress())
        for offload, kind in (("reference", HOST), (False, "device")):
            others, own = begun(offload)
            arrays, progress = checkpoints.restore(1, array_shapes(own, others))
            found = resume(arrays, progress, others)
            assert lies(found.reference) == {kind}
            assert same(found.reference, state.reference)


@pytest.mark.parametrize("offload", [False, "moments", "reference", "both"])
def test_the_first_lines_say_where_moments_and_reference_are(offload):
    config = base_of({**KL, "optimizer.offload": offload})
    devices = find_devices(config, made()[1])
    said = "\n".join(memory_lines(config, devices.shapes(made()[2]), devices))
    assert ("MiB in the host memory of each device (" in said) == (offload in ("moments", "both"))
    assert ("reference policy: 0.4 MiB in" in said) == (offload in ("reference", "both"))


def test_a_run_without_a_reference_policy_of_its_own_is_refused():
    config = base_of({**KL, "optimizer.offload": "reference"})
    check(config)
    with pytest.raises(
        ValueError, match=r"offload is reference, but nothing reads.*knobs\.beta > 0"
    ):
        check(base_of({"optimizer.offload": "reference"}))
    with pytest.raises(ValueError, match=r"offload is both, but with lora\.rank"):
        check(replace(config, lora=Lora(rank=2), optimizer=Optimizer(offload="both")))


@pytest.mark.parametrize("given", ["moments", "reference", "both", False])
def test_the_command_line_takes_it(given):
    options = ["--knobs.beta=0.1", f"--optimizer.offload={given}"]
    assert parse(options, program="ogrpo train", preset="none").optimizer.offload == given


def test_what_is_no_kind_of_memory_is_refused():
    with pytest.raises(ValueError, match=r"optimizer\.offload is True: choose one of .*moments"):
        TrainConfig(optimizer=Optimizer(offload=True))  # type: ignore[arg-type]
