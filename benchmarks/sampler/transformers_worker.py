"""`generate` of transformers with its default cache and attention; started by `run.py`."""

import numpy as np
import torch
from serving import Draw, Job, Rows, serve
from transformers import AutoModelForCausalLM


def load(job: Job) -> Draw:
    shape = job["shape"]
    torch.set_num_threads(job["threads"])
    dtype = getattr(torch, shape["dtype"])
    sampled = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    how = {"do_sample": False} if shape["greedy"] else sampled
    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=dtype).eval()

    def draw(ids: np.ndarray, seed: int, most: int) -> Rows:
        torch.manual_seed(seed)
        tokens = torch.from_numpy(ids).long()
        with torch.inference_mode():
            out = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                **how,
                num_return_sequences=shape["group"],
                max_new_tokens=most,
                eos_token_id=job["eos"],
                pad_token_id=0,
            )
        rows = out[:, ids.shape[1] :]
        ended = rows == job["eos"]
        lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, ended.shape[1])
        return [row[:n] for row, n in zip(rows.numpy(), lengths.tolist(), strict=True)]

    return draw


if __name__ == "__main__":
    serve(load, ("torch", "transformers"))
