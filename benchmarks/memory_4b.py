"""What XLA holds on each device for one update of a Qwen3-4B-shaped decoder; no weights needed.

    python -m benchmarks.memory_4b --data 1 --fsdp 8 --tensor 1 --microbatches 8

The update is lowered from shapes with shardings and compiled for as many host-platform devices as
the mesh asks for; nothing is allocated and nothing runs. The figures are XLA's own
(`compiled.memory_analysis()`), per device:

    arguments  the train state and the batch       (the state is donated: outputs alias it)
    temporary  all that lives between: gradient, gathered weights, activations, logits
    peak       arguments + temporary + outputs that alias nothing
"""

import argparse
import os
import time

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, value in (("data", 1), ("fsdp", 8), ("tensor", 1)):
    PARSER.add_argument(f"--{name}", type=int, default=value)
for name, value in (("prompts", 64), ("group", 16), ("prompt", 256), ("completion", 1024)):
    PARSER.add_argument(f"--{name}", type=int, default=value)
PARSER.add_argument("--microbatches", type=int, default=1)
PARSER.add_argument("--remat", choices=("none", "products", "full"), default="full")
PARSER.add_argument("--log-probs", choices=("reference", "chunked"), default="chunked")
PARSER.add_argument("--lora-rank", type=int, help="of adapters; default: every weight is trained")
PARSER.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
PARSER.add_argument("--compute-dtype", choices=("float32", "bfloat16"), default="bfloat16")


def main(options: argparse.Namespace) -> None:
    devices = options.data * options.fsdp * options.tensor
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    from benchmarks.memory_4b_update import analyse  # after the flags

    begin = time.perf_counter()
    figures = analyse(options)
    print(f"# {devices} devices: {vars(options)}; compiled in {time.perf_counter() - begin:.0f} s")
    for label, size in figures.items():
        print(f"{label:28} {size / 2**30:8.2f} GiB")


if __name__ == "__main__":
    main(PARSER.parse_args())
