"""What XLA plans for an update on a batch with one long completion among short ones.

    python -m benchmarks.memory_cut --tokens 4608 8192 16384

The update is lowered from shapes and compiled for the CPU; nothing is allocated and nothing runs.
Rows: the batch padded, a prompt at a time; packed in as many microbatches; and packed and cut by
tokens (`--optimizer.microbatch-tokens`). Computed tokens are those of all parts, padding included.
"""

import argparse
import os

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--shape", default="qwen2.5-0.5b", help="of `ogrpo.policy.shapes`")
for name, value in (("prompts", 8), ("group", 8), ("prompt", 256), ("completion", 4096)):
    PARSER.add_argument(f"--{name}", type=int, default=value)
PARSER.add_argument("--short", type=int, nargs=2, default=(100, 500), help="of the others")
PARSER.add_argument("--tokens", type=int, nargs="+", default=[4608, 8192, 16384])
PARSER.add_argument("--remat", choices=("none", "products", "full"), default="full")
PARSER.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")


def main(options: argparse.Namespace) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks.memory_cut_update import analyse, layouts  # after the platform

    print(f"# {vars(options)}")
    print("| batch | parts | tokens a part | computed tokens | padding | temporary GiB |")
    print("|---|---|---|---|---|---|")
    for name, optimizer in layouts(options):
        found = analyse(options, optimizer)
        figures = [
            f"{found.parts}",
            f"{found.row:,}",
            f"{found.parts * found.row:,}",
            f"{found.padding:.0%}",
            f"{found.temporary / 2**30:.2f}",
        ]
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main(PARSER.parse_args())
