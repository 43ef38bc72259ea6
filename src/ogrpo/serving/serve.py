"""`ogrpo-serve`: a vLLM server as the trainer needs it, or the embedded sampler in its place."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from ogrpo.rollout.extension import ogrpo_serve
from ogrpo.system.extras import MissingExtra, needs
from ogrpo.system.terminal import shown

PROMPTS = 8
"""Prompts that the embedded sampler computes at once; a shorter request is filled up."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until interrupted, as the command line or the arguments say; returns the exit code."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    before, more = ogrpo_serve.split(words)
    options = ogrpo_serve.parser().parse_args(before)
    if options.engine == "vllm":
        return ogrpo_serve.main(words)
    of_vllm = {
        "--raw-log-probs": options.raw_log_probs,
        "--restarts": options.restarts,
        "--tensor-parallel": options.tensor_parallel > 1,
        "options after --": more,
    }
    refused = [name for name, value in of_vllm.items() if value]
    try:
        if refused:
            raise ValueError(f"--engine embedded takes no {', '.join(refused)}: leave it out")
        return serve_embedded(options)
    except (ValueError, OSError) as error:
        print(f"error: {shown(error)}", file=sys.stderr)
        return 2


def serve_embedded(options: argparse.Namespace) -> int:
    """Serves a model folder from the embedded sampler until interrupted."""
    try:
        needs("ogrpo-serve --engine embedded", "train")
    except MissingExtra as error:
        sys.exit(str(error))
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    # Imported here: where vLLM is served there is no JAX.
    from ogrpo.data.tokenizer import TextTokenizer
    from ogrpo.rollout.endpoint import Endpoint, Service
    from ogrpo.serving.bridge import embedded_model

    dtype = options.dtype or "float32"
    longest = ogrpo_serve.max_length(options)
    what = f"the embedded sampler of {options.model} in {dtype}, {longest} tokens at most,"
    if options.dry_run:
        print(f"{what} on http://{options.host}:{options.port}")
        return 0
    tokenizer = TextTokenizer.load(options.model)
    model, params = embedded_model(
        options.model,
        dtype=dtype,
        eos_id=tokenizer.eos_id,
        batch_size=PROMPTS,
        max_length=longest,
    )
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"{options.model}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, and the"
            f" model's vocab_size is {model.vocab_size}: give the tokenizer it was trained with"
        )
    service = Service(model, params, options.name)
    endpoint = Endpoint(service, host=options.host, port=options.port)
    # Also where SIGINT is ignored, as it is in the background of a script.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"{what} on {endpoint.url}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        endpoint.serve_forever()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
