"""Ratio of how often a sampler of 8-bit weights ends a completion to how often its policy would.

Command: python -m experiments.real.ends
Hardware and time: one CPU core, 5 GiB, about five core-minutes.

The sampler mu is SmolLM2-135M-Instruct rounded to int8, as the method `int8` of the study begins
with it. Of its completions, the sum over places of mu(end) over the sum of pi(end) is what the
rounding does to the number of ends; it is 1 where rounding errors have no direction.
"""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from experiments.grid.verdicts import mean_and_interval
from experiments.real.study import base
from experiments.variance.along import draw_batches
from ogrpo.batch import Batch
from ogrpo.policy.log_probs import completion_log_probs_and_entropy
from ogrpo.policy.params import int8_weights
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare

GROUPS, PROMPTS, SEED = 32, 8, 1
"""Groups of eight completions, and prompts of a call."""


def main() -> None:
    """Prints the ratio for all weights rounded, for the vocabulary's table and for the layers."""
    with closing(prepare(base())) as prepared:
        decoder, pi = make_model(prepared, Console(quiet=True))
        parts = make_parts(prepared.config, prepared, decoder)
        temperature = prepared.config.rollout.temperature
        end = prepared.tokenizer.eos_id

        @jax.jit
        def ends(params: dict, batch: Batch[jax.Array]) -> jax.Array:
            """Returns the expected number of ends in each group's places, [N]."""
            ids = jnp.full((*batch.completion_ids.shape, 1), end, jnp.int32)
            batch = batch._replace(top_ids=ids)
            scored = completion_log_probs_and_entropy(params, decoder, batch, temperature)
            assert scored.top_log_probs is not None
            of_end = jnp.exp(scored.top_log_probs[..., 0])
            return jnp.sum(jnp.where(batch.completion_mask, of_end, 0), axis=(1, 2))

        mu = int8_weights(pi)
        rounded = {
            "all": mu,
            "the table": {**pi, "embed_tokens": mu["embed_tokens"]},
            "the layers": {**pi, "layers": mu["layers"]},
        }
        counts: dict[str, list[jax.Array]] = {name: [] for name in ("none", *rounded)}
        for batch in draw_batches(parts, mu, GROUPS, PROMPTS, SEED, "ends"):
            for name, params in {"none": pi, **rounded}.items():
                counts[name].append(ends(params, batch))
    plain = np.concatenate(counts["none"])
    for name in rounded:
        of_name = np.concatenate(counts[name])
        ratio = of_name.sum() / plain.sum()
        # The ratio's linear part: its mean is 0 and its spread over groups that of the ratio.
        _, half = mean_and_interval((of_name - ratio * plain) / plain.mean())
        print(f"{name} rounded: {ratio:.3f} ± {half:.3f} of the policy's {plain.sum():.0f} ends")


if __name__ == "__main__":
    main()
