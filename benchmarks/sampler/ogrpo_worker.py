"""ogrpo's embedded engine, as a run uses it; started by `run.py`."""

import numpy as np
from serving import Draw, Job, serve

from ogrpo.bridge import embedded_engine
from ogrpo.policy import load_pretrained
from ogrpo.rollout.protocol import Sampling


def load(job: Job) -> Draw:
    shape = job["shape"]
    config, params = load_pretrained(job["folder"], shape["dtype"])
    engine = embedded_engine(
        config, eos_id=job["eos"], batch_size=shape["prompts"], prompt_length=shape["prompt"]
    )
    engine.publish(params, 0)
    sampling = Sampling(temperature=1.0, max_tokens=shape["tokens"], group_size=shape["group"])

    def draw(ids: np.ndarray, seed: int) -> np.ndarray:
        groups = engine.generate(list(ids), sampling, seed)
        return np.array([len(c.token_ids) for group in groups for c in group.completions])

    return draw


if __name__ == "__main__":
    serve(load, ("jax", "jaxlib", "flax"))
