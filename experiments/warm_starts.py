"""Trains the warm starts that the package comes with, and writes them where it reads them.

    python -m experiments.warm_starts            # all
    python -m experiments.warm_starts default-0  # of these names

A change of what a warm start depends on (`ogrpo.setup.imitation.warm_start_recipe`) leaves the
shipped one unread, and `tests/setup/test_shipped.py` says so. On 2 cores: the default's 35 s.
"""

import sys
from contextlib import closing
from dataclasses import replace

from rich.console import Console

from ogrpo.config.train import TrainConfig
from ogrpo.setup.cache import digest, ship
from ogrpo.setup.imitation import warm_start_recipe
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import Prepared, prepare
from ogrpo.setup.presets import chains, main_study


def chains_from(seed: int) -> TrainConfig:
    """Returns the preset `chains` with this warm start."""
    preset = chains()
    return replace(preset, warm_start=replace(preset.warm_start, seed=seed))


SHIPPED: dict[str, TrainConfig] = {
    "default-0": main_study(),
    "chains-0": chains_from(0),
    "chains-1": chains_from(1),
}
"""By the names of their files."""


def recipe_of(prepared: Prepared) -> str:
    """Returns the digest by which the manifest names a run's warm start."""
    decoder, demos = prepared.decoder, prepared.demos
    assert demos is not None
    return digest(warm_start_recipe(prepared.config, decoder, prepared.tokenizer, demos))


def main(names: list[str]) -> None:
    """Trains and writes those of these names."""
    for name in names or SHIPPED:
        config = SHIPPED[name]
        anew = replace(config.warm_start, retrain=True, cache=False)
        with closing(prepare(replace(config, warm_start=anew))) as prepared:
            _, params = make_model(prepared, Console())
            ship(recipe_of(prepared), name, params)


if __name__ == "__main__":
    main(sys.argv[1:])
