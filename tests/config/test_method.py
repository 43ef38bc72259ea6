"""A config becomes a whole method: its inputs, its title, its refusals."""

import dataclasses
import re

import pytest

from ogrpo.cli.options import parse
from ogrpo.config.method import algorithm, check, ignores_zero_variance, knobs, title
from ogrpo.config.rollout import Rollout
from ogrpo.config.schedule import Schedule
from ogrpo.config.update import Knobs, Optimizer, Override, Region
from ogrpo.core.algorithms import ADVANTAGES, ALGORITHMS, CENTERS, GATES, KLS, REDUCTIONS, WEIGHTS
from ogrpo.core.algorithms.parts import BONUS_KNOBS
from ogrpo.setup.build import region_fn
from ogrpo.setup.presets import PRESETS, main_study
from ogrpo.system.values import check as check_values
from tests.names import PAGE

CLIP = Region(kind="clip")
BY_TOKENS = Optimizer(batching="packed", microbatch_tokens=40)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_name_brings_the_whole_method(name):
    config = main_study(algorithm=name, schedule=Schedule(sync_interval=10, updates_per_batch=2))
    check(config)
    assert algorithm(config) is ALGORITHMS[name]
    published = {n: k.default for n, k in ALGORITHMS[name].knobs.items()}
    expected = {n: 14.0 if v is None else v for n, v in published.items()}
    assert knobs(config) == pytest.approx(expected)
    assert title(config) == name


PARTS = {"advantage": ADVANTAGES, "reduction": REDUCTIONS, "center": CENTERS, "kl": KLS}
PARTS |= {"weight": WEIGHTS, "gate": GATES, "bonus": BONUS_KNOBS}


def test_every_knob_of_every_method_and_part_is_an_option():
    options = {field.name for field in dataclasses.fields(Knobs)}
    with_knobs = (ALGORITHMS, ADVANTAGES, WEIGHTS, GATES)
    named = {name for table in with_knobs for part in table.values() for name in part.knobs}
    of_run = {"length", "baseline"}
    assert options == (named | {*BONUS_KNOBS["entropy"]}) - of_run


@pytest.mark.parametrize("option", PARTS)
def test_every_part_is_a_word_of_its_option(option):
    for name in PARTS[option]:
        check_values(Override(**{option: (name,) if option == "gate" else name}))


def test_the_title_says_what_is_not_the_methods_own():
    config = main_study(
        algorithm="dr_grpo",
        override=Override(advantage="group_standardized", mask_zero_variance=True),
        knobs=Knobs(beta=0.1),
        trust_region=Region(kind="mask"),
    )
    assert title(config) == (
        "dr_grpo, advantage group_standardized, beta 0.1, zero-variance groups left out,"
        " trust region mask"
    )


def test_the_command_line_that_the_page_of_names_gives_for_a_title_has_that_title():
    stated, command = re.search(r"For\s`(.*?)` give `(.*?)`", PAGE.read_text(), re.DOTALL).groups()
    assert title(parse(command.split(), program="train", preset="default")) == stated


EXACT = Override(center="exact")
REFUSED = {
    "an unknown name": (main_study(algorithm="gpro"), "there is no algorithm 'gpro'. Did you mean"),
    "a knob of a clip that never binds": (
        main_study(override=EXACT, knobs=Knobs(eps_low=0.1)),
        r"knobs\.eps-low is 0\.1, which changes nothing here: .* --schedule\.updates-per-batch more than 1",
    ),
    "stages that nothing reads": (
        main_study(schedule=Schedule(stages=2)),
        r"schedule\.stages is 2, but nothing reads the reference .* give --knobs\.beta",
    ),
    "an adaptive clip that never binds": (
        main_study(override=EXACT, trust_region=CLIP),
        r"trust-region\.kind is clip, which adapts a clip that never binds",
    ),
    "a clip's width for a loss without": (
        main_study(algorithm="reinforce", trust_region=CLIP),
        r"adapts eps, which reinforce does not have",
    ),
    "one width for two": (
        main_study(algorithm="dapo", trust_region=CLIP),
        r"one width for both sides, but eps-low is 0\.2 and eps-high 0\.28",
    ),
    "masks of groups that carry no loss": (
        main_study(override=Override(mask_zero_variance=True)),
        r"mask-zero-variance is True, which changes nothing here: .* Give --knobs\.beta",
    ),
    "skipping groups that carry loss": (
        main_study(
            algorithm="asymre", optimizer=Optimizer(skip_zero_variance=True, microbatches=2)
        ),
        r"under asymre groups of equal rewards may carry one: give --override\.mask-zero-variance",
    ),
    "sets as large as a group": (
        main_study(algorithm="maxpo", rollout=Rollout(group_size=2)),
        r"rollout\.group-size is 2, and maxpo holds sets of 2 completions .* above knobs\.k",
    ),
    "sets larger than a group": (
        main_study(algorithm="pass_at_k", knobs=Knobs(k=9)),
        r"knobs\.k is 9, and pass_at_k holds sets of 9 completions",
    ),
    "groups that are split by tokens": (
        main_study(algorithm="opmd_pairwise", optimizer=BY_TOKENS),
        r"microbatch-tokens is 40, but opmd_pairwise looks at a whole group",
    ),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_an_option_that_would_change_nothing_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        check(config)


ALLOWED = {
    "the exact centre over several updates": main_study(
        override=EXACT, knobs=Knobs(eps_low=0.1), schedule=Schedule(updates_per_batch=2)
    ),
    "stages of a KL term": main_study(knobs=Knobs(beta=0.1), schedule=Schedule(stages=2)),
    "masks that change the average": main_study(
        override=Override(mask_zero_variance=True, count_masked=False)
    ),
    "the cap of a weight": main_study(
        override=Override(weight="truncated"), knobs=Knobs(weight_cap=1.5)
    ),
    **{name: preset() for name, preset in PRESETS.items()},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_acts_and_every_preset_is_accepted(name):
    check(ALLOWED[name])


def test_groups_of_equal_rewards_are_silent_or_not():
    assert ignores_zero_variance(main_study())
    assert ignores_zero_variance(main_study(algorithm="opo"))
    assert ignores_zero_variance(main_study(algorithm="pass_at_k", knobs=Knobs(k=4)))
    assert not ignores_zero_variance(main_study(override=Override(whiten="tokens")))
    for advantage in ("group_whitened", "overlong_standardized"):
        assert not ignores_zero_variance(main_study(override=Override(advantage=advantage)))
    assert not ignores_zero_variance(main_study(knobs=Knobs(beta=0.1)))
    assert not ignores_zero_variance(main_study(algorithm="asymre"))
    assert not ignores_zero_variance(main_study(algorithm="raft", knobs=Knobs(threshold=1)))
    assert not ignores_zero_variance(main_study(algorithm="opmd_kimi"))
    assert not ignores_zero_variance(main_study(trust_region=Region(kind="penalty")))


@pytest.mark.parametrize(("kind", "first"), [("penalty", 0.0), ("clip", 0.2), ("mask", ())])
def test_a_trust_region_begins_without_a_penalty_and_with_the_clips_own_width(kind, first):
    config = main_study(trust_region=Region(kind=kind))
    make = region_fn(config)
    assert make is not None
    assert make(algorithm(config).loss).init() == first
