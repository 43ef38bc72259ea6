"""Updates on a mesh beside the same updates on one device, in a process that has the devices.

`python -m tests.learner.mesh_worker CASE ...` prints one JSON object by case. A case is
"data,fsdp,tensor,microbatches", with ",r" behind it for adapters of that rank alone and "packed:"
before it for packed batches ("cut:" for ones cut by tokens), or "copied". Padded batches go
through the accelerated kernels, the device beside them through the plain ones.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.config.update import Kernels, Lora, Mesh
from ogrpo.learner import sharding
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.state import TrainState, hypers
from ogrpo.loop import Packer
from ogrpo.loop.batches import make_batch as make_batch_of
from ogrpo.policy.lora import merge
from ogrpo.policy.params import param_axes
from ogrpo.setup.devices import make_devices, state_layout, ways
from ogrpo.setup.presets import main_study
from tests.learner import toy
from tests.learner.toy import ADAM, KNOBS, make_recipe
from tests.policy.tiny import make_config, make_params

CONFIG = make_config("Qwen2", vocab_size=16)
GIVEN = hypers(1e-2, 0.9, KNOBS)


SIZES = {"n": 16, "p": 4, "t": 3, "vocab": CONFIG.vocab_size, "loss": 0.8}
make_batch = partial(toy.make_batch, **SIZES)


def packed_batch(microbatches: int, together: int, tokens: int | None) -> Batch:
    """The same groups without their padding, log-probs of the reference in the same order."""
    packer = Packer(microbatches, False, together, tokens)
    return make_batch_of(toy.make_groups(**SIZES), packer, for_update=True).batch


def two_updates(update, state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
    """The second update has moments to start from."""
    state, _ = update(state, batch, GIVEN)
    return update(state, batch, GIVEN)


@cache
def on_one_device(lora: Lora) -> tuple[Callable, TrainState, TrainState, dict]:
    """The function that examines tokens, the first state, the last one, and its metrics."""
    devices = make_devices(main_study(lora=lora), CONFIG, ADAM, ())
    recipe = make_recipe(policy_fn=devices.policy_fn)
    update, tokens = devices.make_update(recipe), devices.make_tokens(recipe)
    first = devices.init(make_params(CONFIG))
    begun = jax.device_get(first)
    return tokens, begun, *jax.device_get(two_updates(update, first, make_batch()))


def on_mesh(
    sizes: dict[str, int], microbatches: int, lora: Lora, *, packed: bool, tokens: int | None
) -> dict:
    kernels = Kernels() if packed else Kernels(log_probs="chunked", attention="blocked")
    config = main_study(mesh=Mesh(**sizes), lora=lora, kernels=kernels)
    devices = make_devices(config, CONFIG, ADAM, ())
    to, together = state_layout(config, CONFIG, ADAM), ways(config)
    batch = packed_batch(microbatches, together, tokens) if packed else make_batch()
    recipe = make_recipe(
        policy_fn=devices.policy_fn, microbatches=microbatches, packed=packed, together=together
    )
    state = devices.init(devices.place_params(make_params(CONFIG)))
    update = devices.make_update(recipe)
    seen = jax.device_get(devices.make_tokens(recipe)(state, batch, GIVEN))
    state, metrics = two_updates(update, state, batch)
    repeat = jax.jit(lambda tree: tree, out_shardings=to.everywhere)
    whole, metrics = jax.device_get(repeat(state)), jax.device_get(metrics)
    broken = batch._replace(rewards=jnp.asarray(batch.rewards).at[2, 0].set(jnp.inf))
    state, stepped_metrics = update(state, broken, GIVEN)
    examine, begun, expected, reported = on_one_device(lora)
    examined = jax.device_get(examine(begun, batch._replace(packing=None), GIVEN))
    return {
        "skipped": float(stepped_metrics["skipped"]),
        "untouched": toy.bits(repeat(state)) == toy.bits(whole),
        "state": largest(whole, expected),
        "moved": largest(expected.params, begun.params),
        "metrics": largest(metrics, reported),
        "tokens": largest(*jax.tree.map(np.float32, (seen, examined))),
        "bytes": sharding.bytes_per_device((state.whole(), state.opt_state)),
        **merged_alike(state, whole, to.mesh),
        "kept": kept(state, to),
    }


def merged_alike(state: TrainState, whole: TrainState, mesh: jax.sharding.Mesh) -> dict:
    """A mesh's merged policy beside that of the same state on one device."""
    merged, expected = merge(state.whole()), merge(whole.whole())
    places = sharding.places(param_axes(CONFIG), mesh)
    lies = jax.tree.map(lambda x, place: x.sharding.is_equivalent_to(place, x.ndim), merged, places)
    return {
        "merged": largest(jax.device_get(merged), expected),
        "merged_kept": all(jax.tree.leaves(lies)),
    }


def largest(one, other) -> float:
    gaps = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), one, other)
    return max(jax.tree.leaves(gaps))


def kept(state: TrainState, to: sharding.MeshLayout) -> bool:
    places = jax.tree.map(lambda leaf, place: leaf.sharding == place, state, to.state)
    return all(jax.tree.leaves(places))


def copied() -> dict:
    """Copies a state as the loop keeps it for the sampler, and as a checkpoint restores it."""
    to = state_layout(main_study(mesh=Mesh(data=1, fsdp=4, tensor=2)), CONFIG, ADAM)
    state = sharding.init_placed(make_params(CONFIG), ADAM, to)
    snapshot = jax.tree.map(jnp.copy, state)
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, jax.tree.map(lambda x: x + x, state), {})
        restored = checkpoints.restore(1, snapshot)[0]
        other = state_layout(main_study(mesh=Mesh(data=2, fsdp=2)), CONFIG, ADAM)
        moved = checkpoints.restore(1, placed(state, other.state))[0]
        one = jax.tree.map(lambda _: jax.sharding.SingleDeviceSharding(jax.devices()[3]), state)
        single = checkpoints.restore(1, placed(state, one))[0]
    doubled = jax.tree.map(lambda x: 2 * np.asarray(x), state)
    return {
        "state": largest(restored, doubled) + largest(snapshot, state),
        "kept": kept(snapshot, to) and kept(restored, to),
        "elsewhere": largest(moved, doubled) + largest(single, doubled),
        "lies": kept(moved, other),
    }


def placed(state: TrainState, places: TrainState) -> TrainState:
    """Shapes of a state in other places than its own."""
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        state,
        places,
    )


def carry_out(case: str) -> dict:
    if case == "copied":
        return copied()
    *layout, numbers = case.split(":")
    data, fsdp, tensor, microbatches, *rank = map(int, numbers.split(","))
    lora = Lora(rank=rank[0]) if rank else Lora()
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    tokens = 12 if layout == ["cut"] else None
    return on_mesh(sizes, microbatches, lora, packed=bool(layout), tokens=tokens)


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    for case in sys.argv[1:]:
        print(json.dumps({"case": case, **carry_out(case)}), flush=True)
