"""What XLA plans for one update with long completions: the Qwen2.5-1.5B shape; no weights needed.

    python -m benchmarks.memory_long --completions 512 1024 2048 4096 8192 16384 32768

The update of one prompt with its completions is lowered from shapes and compiled for the CPU;
nothing is allocated and nothing runs. The figures are XLA's own (`compiled.memory_analysis()`):

    state      weights and Adam's moments, given and returned in place
    temporary  all that lives between: gradient, layers' inputs, attention, MLP, logits

`plan` is what `ogrpo plan` counts for the same update beside its state.
"""

import argparse
import os
import time

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--shape", default="qwen2.5-1.5b", help="of `ogrpo.policy.shapes`")
PARSER.add_argument("--completions", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
for name, value in (("group", 16), ("prompt", 256)):
    PARSER.add_argument(f"--{name}", type=int, default=value)
PARSER.add_argument("--remat", choices=("none", "products", "full"), default="full")
PARSER.add_argument("--attention", choices=("auto", "plain", "blocked"), default="auto")
PARSER.add_argument("--log-probs", choices=("reference", "chunked"), default="chunked")
PARSER.add_argument("--kept-mib", type=int, default=512, help="of logits")
PARSER.add_argument("--moments", choices=("full", "bfloat16", "factored"), default="full")
PARSER.add_argument("--lora-rank", type=int, help="of adapters; default: every weight is trained")
PARSER.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
PARSER.add_argument("--compute-dtype", choices=("float32", "bfloat16"), default="bfloat16")


def main(options: argparse.Namespace) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks.memory_long_update import analyse  # after the platform

    print(f"# {vars(options)}")
    print("| completion | state GiB | temporary GiB | a token, KiB | compiled in s |")
    print("|---|---|---|---|---|")
    for length in options.completions:
        begin = time.perf_counter()
        state, temporary = analyse(options, length)
        tokens = options.prompt + options.group * length
        figures = [
            str(length),
            f"{state / 2**30:.2f}",
            f"{temporary / 2**30:.2f}",
            f"{temporary / 2**10 / tokens:.0f}",
            f"{time.perf_counter() - begin:.0f}",
        ]
        print(f"| {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main(PARSER.parse_args())
