import pytest

from benchmarks.fuzz_judges import fuzz


@pytest.mark.slow
def test_no_random_answer_is_accepted_that_is_wrong_nor_refused_that_is_right():
    report = fuzz(500, seed=0)
    assert report.accepted == []
    assert report.refused == []
    assert sum(report.outcomes.values()) == 500
    assert min(report.outcomes[name] for name in ("correct", "wrong", "unparsable")) > 75
