"""`generate` of transformers with its default cache and attention; started by `sampler.py`."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from worker import Draw, Job, Rows, serve


def load(job: Job) -> Draw:
    shape = job.shape
    torch.set_num_threads(job.fields["threads"])
    dtype = getattr(torch, shape.dtype)
    sampled = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    how = {"do_sample": False} if shape.greedy else sampled
    model = AutoModelForCausalLM.from_pretrained(job.folder, dtype=dtype).eval()

    def draw(ids: np.ndarray, seed: int, most: int) -> Rows:
        torch.manual_seed(seed)
        tokens = torch.from_numpy(ids).long()
        with torch.inference_mode():
            out = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                **how,
                num_return_sequences=shape.group,
                max_new_tokens=most,
                eos_token_id=job.fields["eos"],
                pad_token_id=0,
            )
        return [*out[:, ids.shape[1] :].numpy()]

    return draw


if __name__ == "__main__":
    serve(load, "torch", "transformers")
