"""A padded batch of which only the shapes are known, and the memory of what is not run."""

from typing import Any

import jax
import jax.numpy as jnp

from ogrpo.batch import Batch


def batch_shapes(n: int, g: int, p: int, t: int) -> Batch[Any]:
    """`n` prompts of `p` tokens, with `g` completions of `t` tokens each."""
    of = jax.ShapeDtypeStruct
    return Batch(
        prompt_ids=of((n, p), jnp.int32),
        prompt_mask=of((n, p), jnp.bool_),
        completion_ids=of((n, g, t), jnp.int32),
        completion_mask=of((n, g, t), jnp.bool_),
        loss_mask=of((n, g, t), jnp.bool_),
        behavior_log_probs=of((n, g, t), jnp.float32),
        rewards=of((n, g), jnp.float32),
        policy_versions=of((n, g), jnp.int32),
    )


def temporary_bytes(lowered: jax.stages.Lowered) -> int:
    """What XLA plans between a program's inputs and outputs."""
    return planned(lowered).temp_size_in_bytes


def planned(lowered: jax.stages.Lowered) -> Any:
    """XLA's analysis of a program's memory.

    Memory is planned before machine code is made, which nobody will run: half of the compiler's
    time is saved there, to the same figures.
    """
    fast = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return lowered.compile(compiler_options=fast).memory_analysis()
