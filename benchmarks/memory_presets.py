"""What XLA plans for an update of each preset of a real model, all of its completions full.

    python -m benchmarks.memory_presets

Its own update on a batch as its packer lays it out is lowered from shapes and compiled for the CPU;
nothing is allocated and nothing runs. State (weights, moments) and the policies kept beside it are
counted as `ogrpo plan` counts them.
"""

import argparse
import os

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--presets", nargs="+", help="default: all of a real model")


def main(options: argparse.Namespace) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks.memory_presets_update import DEVICES, measure  # after the platform

    print("| preset | device, GiB | XLA's plan, GiB | temporary | ogrpo plan | fits |")
    print("|---|---|---|---|---|---|")
    for name in options.presets or DEVICES:
        found = measure(name)
        figures = (found.capacity, found.total, found.temporary, found.planned)
        cells = [name, *(f"{size / 2**30:.1f}" for size in figures)]
        print(f"| {' | '.join(cells)} | {'yes' if found.fits else 'no'} |", flush=True)


if __name__ == "__main__":
    main(PARSER.parse_args())
