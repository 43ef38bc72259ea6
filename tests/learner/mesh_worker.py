"""Updates on a mesh beside the same updates on one device, in a process that has the devices.

`python -m tests.learner.mesh_worker` fails where they differ, and says "equal" where they do not.
Padded batches go through the accelerated kernels, the device beside them through the plain ones.
"""

import tempfile
import warnings
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
from ogrpo.setup.devices import data_shards, make_devices, state_layout
from ogrpo.setup.presets import main_study
from tests.kernels.sharded import check_kernels
from tests.learner import toy
from tests.learner.toy import ADAM, KNOBS, make_spec
from tests.policy.tiny import make_config, make_params

CONFIG = make_config("Qwen2", vocab_size=16)
GIVEN = hypers(1e-2, 0.9, KNOBS)
SIZES = {"n": 16, "p": 4, "t": 3, "vocab": CONFIG.vocab_size, "loss": 0.8}
make_batch = partial(toy.make_batch, **SIZES)


def two_updates(update, state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
    """The second update has moments to start from."""
    state, _ = update(state, batch, GIVEN)
    return update(state, batch, GIVEN)


@cache
def on_one_device(lora: Lora) -> tuple[Callable, TrainState, TrainState, dict]:
    """The function that examines tokens, the first state, the last one, and its metrics."""
    devices = make_devices(main_study(lora=lora), CONFIG, ADAM, ())
    spec = make_spec(policy_fn=devices.policy_fn)
    update, tokens = devices.make_update(spec), devices.make_tokens(spec)
    first = devices.init(make_params(CONFIG))
    begun = jax.device_get(first)
    return tokens, begun, *jax.device_get(two_updates(update, first, make_batch()))


def check_update(sizes: dict, lora: Lora, *, microbatches=1, packed=False, tokens=None) -> int:
    """Two updates are those of one device, a third is skipped on all; returns a device's bytes."""
    kernels = Kernels() if packed else Kernels(log_probs="chunked", attention="blocked")
    config = main_study(mesh=Mesh(**sizes), lora=lora, kernels=kernels)
    devices = make_devices(config, CONFIG, ADAM, ())
    to, together = state_layout(config, CONFIG, ADAM), data_shards(config)
    batch = make_batch()
    if packed:  # the same groups without their padding
        packer = Packer(microbatches, False, together, tokens)
        batch = make_batch_of(toy.make_groups(**SIZES), packer, for_update=True).batch
    spec = make_spec(
        policy_fn=devices.policy_fn, microbatches=microbatches, packed=packed, together=together
    )
    state = devices.init(devices.place_params(make_params(CONFIG)))
    update = devices.make_update(spec)
    seen = jax.device_get(devices.make_tokens(spec)(state, batch, GIVEN))
    state, metrics = two_updates(update, state, batch)
    repeat = jax.jit(lambda tree: tree, out_shardings=to.everywhere)
    whole, metrics = jax.device_get(repeat(state)), jax.device_get(metrics)
    examine, begun, expected, reported = on_one_device(lora)
    examined = jax.device_get(examine(begun, batch._replace(packing=None), GIVEN))
    assert largest(whole, expected) < 1e-5
    assert largest(metrics, reported) < 1e-5
    assert largest(*jax.tree.map(np.float32, (seen, examined))) < 1e-5
    assert largest(expected.params, begun.params) > 1e-2
    broken = batch._replace(rewards=jnp.asarray(batch.rewards).at[2, 0].set(jnp.inf))
    state, metrics = update(state, broken, GIVEN)
    assert metrics["skipped"] == 1
    assert toy.bits(repeat(state)) == toy.bits(whole)
    assert lies(state, to.state)
    merged = merge(state.whole())
    assert largest(jax.device_get(merged), merge(whole.whole())) < 1e-6
    places = sharding.places(param_axes(CONFIG), to.mesh)
    alike = jax.tree.map(lambda x, at: x.sharding.is_equivalent_to(at, x.ndim), merged, places)
    assert all(jax.tree.leaves(alike))
    return sharding.bytes_per_device((state.whole(), state.opt_state))


def check_tensor_alone() -> None:
    """The gradient of log-probs where no batch is cut, by the kernel of small vocabularies."""

    def slopes(mesh: Mesh):
        devices = make_devices(main_study(mesh=mesh, kernels=Kernels()), CONFIG, ADAM, ())
        params, heat = devices.place_params(make_params(CONFIG)), jnp.float32(0.9)
        batch = make_batch()

        def log_probs(params):
            scored = devices.policy_fn(params, batch, heat).log_probs
            return jnp.sum(jnp.where(batch.completion_mask, scored, 0))

        return jax.device_get(jax.jit(jax.grad(log_probs))(params))

    assert largest(slopes(Mesh(tensor=2)), slopes(Mesh())) < 1e-4


def largest(one, other) -> float:
    gaps = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), one, other)
    return max(jax.tree.leaves(gaps))


def lies(tree, places) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda x, at: x.sharding == at, tree, places)))


def check_updates() -> None:
    """Padded, cut by tokens and packed with adapters; each device holds its share of them."""
    cube = {"data": 2, "fsdp": 2, "tensor": 2}
    mixed = check_update(cube, Lora(), microbatches=2)
    repeated = check_update({"data": 8}, Lora(), packed=True, tokens=12)
    lora = check_update(cube, Lora(rank=3), microbatches=2, packed=True)
    check_tensor_alone()
    d, kv, mlp, layers = CONFIG.hidden_size, CONFIG.num_kv_heads * CONFIG.head_dim, 24, 2
    matrices = CONFIG.vocab_size * d + layers * (2 * d * d + 2 * d * kv + 3 * d * mlp)
    biases, norms = layers * (d + 2 * kv), (2 * layers + 1) * d
    scalars, copies = 4, 3 * 4  # Adam's step count; parameters and two moments in float32
    assert repeated == copies * (matrices + biases + norms) + scalars
    assert mixed == copies * (matrices // 4 + biases // 2 + norms) + scalars
    # Every A and B has one side that is cut in two, by fsdp or by tensor; the rank is not.
    sides = layers * 3 * (4 * d + 2 * (d + kv) + 3 * (d + mlp))
    scales = layers * 7
    once = matrices // 4 + biases // 2 + norms + scales
    assert lora == 4 * once + copies * sides // 2 + scalars


def check_checkpoint() -> None:
    """A state lies as it did in the loop's copy for the sampler and restored from a checkpoint.

    The checkpoint of a mesh of 8 devices is read on one of 4 and on one device, too.
    """
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
    assert largest(snapshot, state) == 0
    assert lies(snapshot, to.state)
    assert largest(single, doubled) == 0
    for tree, places in ((restored, to.state), (moved, other.state)):
        assert largest(tree, doubled) == 0
        assert lies(tree, places)


def placed(state: TrainState, places: TrainState) -> TrainState:
    """Shapes of a state in other places than its own."""
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        state,
        places,
    )


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    check_updates()
    check_checkpoint()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_kernels()
    print("equal")
