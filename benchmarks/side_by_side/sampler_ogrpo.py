"""ogrpo's embedded engine, as a run uses it, or its plain sampler; started by `sampler.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from worker import Draw, Job, Rows, serve

from ogrpo.policy import DecoderConfig, Params, load_pretrained, sample
from ogrpo.protocol import Sampling
from ogrpo.rollout.embedded import EmbeddedEngine
from ogrpo.serving.bridge import embedded_engine

CERTAIN = 1e6


def load(job: Job) -> Draw:
    shape, eos = job.shape, job.fields["eos"]
    config, params = load_pretrained(job.folder, shape.dtype)
    sizes = {"batch_size": shape.prompts, "prompt_length": shape.prompt}
    make = plain_engine if job.settings.plain else embedded_engine
    engine = make(config, eos_id=eos, **sizes)
    engine.publish(params, 0)
    sampling = Sampling(
        temperature=1.0, max_tokens=shape.tokens, group_size=shape.group, greedy=shape.greedy
    )

    def draw(ids: np.ndarray, seed: int, most: int) -> Rows:
        short = most < shape.tokens
        if short:  # one program is compiled for all T tokens: it is left after the first
            engine.publish(ending(params, eos), 0)
        groups = engine.generate(list(ids), sampling, seed)
        if short:
            engine.publish(params, 0)
        return [c.token_ids for group in groups for c in group.completions]

    return draw


def plain_engine(config: DecoderConfig, *, eos_id: int, **sizes: int) -> EmbeddedEngine:
    """Steps over stacked layers that read the whole cache, of all rows until the last has ended."""

    def draw(params: Params, ids: np.ndarray, mask: np.ndarray, seed: int, **how: Any) -> Any:
        arrays = jnp.asarray(ids), jnp.asarray(mask)
        return sample(params, config, *arrays, jax.random.key(seed), eos_id=eos_id, **how)

    return EmbeddedEngine(draw, **sizes)


def ending(params: Params, eos: int) -> Params:
    """Weights of `sampler.make_weights` under which the end of sequence is certain."""
    table = params["embed_tokens"]["weight"]
    return {**params, "embed_tokens": {"weight": table.at[eos, 0].set(CERTAIN)}}


if __name__ == "__main__":
    serve(load, "jax", "jaxlib", "flax")
