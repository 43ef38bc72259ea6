"""llama.cpp's server without HTTP, by its binding xllamacpp; started by `sampler.py`."""

import numpy as np
import xllamacpp
from worker import Draw, Job, Rows, serve


def load(job: Job) -> Draw:
    shape, params = job.shape, xllamacpp.CommonParams()
    params.model.path = str(job.folder / "model.gguf")
    params.n_parallel = shape.prompts * shape.group
    params.n_ctx = params.n_parallel * (shape.prompt + shape.tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job.fields["threads"]
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)

    def draw(ids: np.ndarray, seed: int, most: int) -> Rows:
        request = {
            "prompt": ids.tolist(),
            "n": shape.group,
            "max_tokens": most,
            "temperature": 0.0 if shape.greedy else 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "logprobs": 1,
            "seed": seed,
            "ignore_eos": True,
        }
        choices = server.handle_completions(request)["choices"]
        rows = [[token["id"] for token in choice["logprobs"]["content"]] for choice in choices]
        return [[*row, *[-1] * (most - len(row))] for row in rows]  # it draws all, and lists most

    return draw


if __name__ == "__main__":
    serve(load, "xllamacpp")
