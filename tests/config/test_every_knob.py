"""Each knob changes the numbers of a short run somewhere, and no two algorithms are the same."""

import numpy as np
import pytest

from ogrpo.core.algorithms import ALGORITHMS
from tests.config.knobs import KNOBS
from tests.loop.walk import STALE, base_of, differ, ended


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_changes_the_numbers(name):
    setting, value = KNOBS[name]
    setting = {**STALE, **setting}
    assert differ(ended(base_of(setting)), ended(base_of({**setting, f"knobs.{name}": value})))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_and_is_not_grpo(name):
    own = ended(base_of({**STALE, "algorithm": name}))
    assert all(np.isfinite(leaf).all() for leaf in own[1])
    grpo = ended(base_of({**STALE, "algorithm": "grpo", "knobs.beta": 0.0}))
    same = {"grpo", "off_policy_grpo"}  # with centre 1 and without a KL term it is GRPO
    assert differ(own, grpo) or name in same
