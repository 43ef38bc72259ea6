"""Parameters in one dtype, computed in another."""

import jax
from jax import Array
from jax.typing import DTypeLike

from ogrpo.batch import Batch, PolicyOutput
from ogrpo.learner.state import Params
from ogrpo.learner.update import PolicyFn


def compute_in(policy_fn: PolicyFn, dtype: DTypeLike) -> PolicyFn:
    """Returns the policy of parameters rounded to `dtype` at each use (arXiv:1710.03740, 3.1).

    The gradient reaches the parameters in their own dtype: with bfloat16 compute and float32 master
    weights, a step too small to show in bfloat16 is kept, and such steps add up. Microbatches are
    summed in the parameters' dtype too.
    """

    def policy(params: Params, batch: Batch[Array], temperature: Array) -> PolicyOutput[Array]:
        return policy_fn(jax.tree.map(lambda x: x.astype(dtype), params), batch, temperature)

    return policy
