"""Four host devices, the vocabulary over two: the policy's values and gradients as on one."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
)

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.cli.options import parse
from ogrpo.setup.build import find_devices
from tests.policy.tiny import make_config, make_params, ragged_batch


def values_and_gradients(*options: str):
    words = ["--schedule.prompts=2", "--model.remat=none", *options]
    config = parse(words, program="train", preset="default")
    decoder = make_config("Llama", vocab_size=12, num_layers=1)
    devices = find_devices(config, decoder)
    batch = ragged_batch(decoder, n=2)

    def total(params):
        out = devices.policy_fn(params, batch, jnp.float32(0.8))
        return jnp.sum(jnp.sin(out.log_probs) + 0.3 * out.entropy)

    params = devices.place_params(make_params(decoder))
    return jax.jit(jax.value_and_grad(total))(params)


OVER_MESH = ("--kernels.attention=blocked", "--mesh.data=2", "--mesh.tensor=2")

if __name__ == "__main__":
    plain = values_and_gradients("--kernels.log-probs=reference", "--kernels.attention=plain")
    cut = values_and_gradients("--kernels.log-probs=chunked", *OVER_MESH)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(cut), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    print("equal")
