"""Settings are chosen on tuning rows alone, of methods that were tried whole."""

from experiments.grid.variants import Variant, best_variants, settings_count
from ogrpo.config.train import TrainConfig
from tests.experiments.grid.rows import row_of

SEEDS = (20, 21)


def variants(label: str) -> list[Variant]:
    config = TrainConfig(algorithm={"a": "grpo", "b": "dapo"}[label])
    return [Variant(label, config).with_rate(rate) for rate in (1e-3, 1e-4)]


BOTH = [*variants("a"), *variants("b")]


def rows(scores: dict[tuple[str, float], tuple[float, float]], **more):
    return [
        row_of(variant.cell("tuning", seed), score, **more)
        for variant in BOTH
        for seed, score in zip(SEEDS, scores[variant.label, variant.setting["rate"]], strict=True)
    ]


SCORES = {
    ("a", 1e-3): (0.9, 0.1),
    ("a", 1e-4): (0.6, 0.6),
    ("b", 1e-3): (0.7, 0.5),
    ("b", 1e-4): (0.1, 0.9),
}


def rates(found):
    return {variant.label: variant.setting["rate"] for variant in found}


def test_the_setting_is_the_best_on_average_over_the_tuning_seeds_alone():
    assert rates(best_variants(rows(SCORES), BOTH, SEEDS)) == {"a": 1e-4, "b": 1e-3}
    told = [row_of(v.cell("report", 10), 1.0) for v in BOTH if v.setting["rate"] == 1e-3]
    assert rates(best_variants([*rows(SCORES), *told], BOTH, SEEDS)) == {"a": 1e-4, "b": 1e-3}


def test_a_setting_that_diverged_loses_to_one_that_did_not():
    found = rows(SCORES)
    for row in found:
        if (row["label"], row["setting"]["rate"], row["seed"]) == ("b", 1e-3, 20):
            row["ended"] = "diverged: 4 updates in a row were skipped"
    assert rates(best_variants(found, BOTH, SEEDS)) == {"a": 1e-4, "b": 1e-4}


def test_a_method_that_lacks_a_tuning_row_is_left_out():
    found = [row for row in rows(SCORES) if (row["label"], row["seed"]) != ("a", 21)]
    assert rates(best_variants(found, BOTH, SEEDS)) == {"b": 1e-3}


def test_a_score_that_is_missing_is_not_chosen():
    found = rows(SCORES)
    for row in found:
        if (row["label"], row["setting"]["rate"]) == ("a", 1e-4):
            row["final"]["pass@1/sampled"] = None
    assert rates(best_variants(found, BOTH, SEEDS))["a"] == 1e-3


def test_the_number_of_settings_tried_is_known_for_each_method():
    assert set(settings_count(rows(SCORES)).values()) == {2}
