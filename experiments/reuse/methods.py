"""What `reuse` compares: each method is a change of the default task's configuration."""

from collections.abc import Callable
from dataclasses import replace

from experiments.grid.verdicts import claim
from ogrpo.config.schedule import Reuse, ReuseLimits
from ogrpo.config.train import Replay, TrainConfig

Change = Callable[[TrainConfig], TrainConfig]


def on_policy(config: TrainConfig) -> TrainConfig:
    """One update on each fresh batch, the server renewed at every step."""
    return config


def stale(v: int) -> Change:
    """The server renewed every `v` steps."""
    return lambda config: replace(config, schedule=replace(config.schedule, sync_interval=v))


def iterated(i: int) -> Change:
    """`i` updates on each fresh batch."""
    return lambda config: replace(config, schedule=replace(config.schedule, updates_per_batch=i))


def replayed(ratio: int, groups: int = 64) -> Change:
    """`ratio` batches drawn uniformly from the newest `groups` for each one bought."""

    def change(config: TrainConfig) -> TrainConfig:
        schedule = replace(config.schedule, replay=ratio)
        return replace(config, schedule=schedule, replay=Replay(groups=groups, sampler="uniform"))

    return change


def with_algorithm(change: Change, name: str, *, refuse: bool = False) -> Change:
    """Another algorithm; `refuse` keeps groups of equal rewards out of the buffer."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = change(config)
        kept = replace(config.replay, refuse_zero_variance=refuse)
        return replace(config, algorithm=name, replay=kept)

    return changed


def exact(change: Change) -> Change:
    """The clip around pi_k/mu, which with one update on a draw is the ratio: it never binds."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = change(config)
        return replace(config, override=replace(config.override, center="exact"))

    return changed


def adaptive(change: Change, limits: ReuseLimits | None = None) -> Change:
    """As many draws a step as the signals allow, at most those of `change`."""
    return lambda config: replace(
        change(config), reuse=Reuse(adaptive=True, limits=limits or ReuseLimits())
    )


BASELINES = ("on-policy", "positives-1")
"""What uses each group once: the other methods are held against the better of these."""

METHODS: dict[str, Change] = {
    "on-policy": on_policy,
    "v10-i1": stale(10),
    "v1-i2": iterated(2),
    "v1-i4": iterated(4),
    "replay-2": replayed(2),
    "replay-4": replayed(4),
    "replay-8": replayed(8),
    "v1-i4-exact": exact(iterated(4)),
    "replay-4-exact": exact(replayed(4)),
    "replay-8-exact": exact(replayed(8)),
    "rec-4": with_algorithm(replayed(4), "rec_one_side"),
    "red-weight-4": with_algorithm(replayed(4), "red_weight"),
    "positives-1": with_algorithm(on_policy, "positives"),
    "positives-2": with_algorithm(replayed(2), "positives", refuse=True),
    "positives-4": with_algorithm(replayed(4), "positives", refuse=True),
    "positives-8": with_algorithm(replayed(8), "positives", refuse=True),
    "adaptive-8": adaptive(replayed(8)),
    "adaptive-fresh-8": adaptive(replayed(8, groups=16)),
    "adaptive-positives-8": adaptive(with_algorithm(replayed(8), "positives", refuse=True)),
}

ENOUGH = ("not below", "positives-1")
EIGHT_FOR_ONE = ("positives-8", "above", "positives-1")
CLIP_FOR_NONE = ("replay-8", "above", "replay-8-exact")
WHOLE, HALF, QUARTER = ({"completions": n} for n in (15360, 7680, 3840))
REUSED = ("positives-8", "positives-4", "adaptive-8", "replay-8")
CLAIMS = (
    *(
        claim(f"with a half, {name} does as well as no reuse", *(name, *ENOUGH), HALF, WHOLE)
        for name in REUSED
    ),
    claim(
        "with a half, positives-8 does better than no reuse",
        *("positives-8", "above", "positives-1", HALF, WHOLE),
    ),
    *(
        claim(f"with a quarter, {name} does as well as no reuse", *(name, *ENOUGH), QUARTER, WHOLE)
        for name in REUSED
    ),
    *(
        claim(f"a half costs {name}, which reuses nothing", name, "below", name, HALF, WHOLE)
        for name in BASELINES
    ),
    claim("at a half, reuse gains: successes, 8 draws for 1", *EIGHT_FOR_ONE, HALF),
    claim("at a quarter, reuse gains: successes, 8 draws for 1", *EIGHT_FOR_ONE, QUARTER),
    claim("at a half, the clip gains with 8 draws", *CLIP_FOR_NONE, HALF),
    claim("at a quarter, the clip gains with 8 draws", *CLIP_FOR_NONE, QUARTER),
)
"""Against the better method without reuse at all completions, and at equal ones."""
