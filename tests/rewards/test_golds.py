import re

import pytest

from ogrpo.rewards.golds import check_golds, find_bad_golds

BAD = {
    r"33\frac13\%": "cannot parse",
    r"0.\overline{3}": "cannot parse",
    r"\frac{1}{2": "cannot parse",
    r"\frac12}": "cannot parse",
    r"\frac{1}{0}": "does not find",
    "(9^{9^{9^9}}, 1)": "does not come to an end",
    "": "is empty",
}


def test_each_bad_gold_is_found_with_its_fault():
    found = find_bad_golds(["5", *BAD, r"\frac12", *BAD], seconds=0.5, processes=2)
    places = range(1, len(BAD) + 1)
    assert list(found) == [*places, *(n + len(BAD) + 1 for n in places)]
    for n, fault in zip(places, BAD.values(), strict=True):
        assert fault in found[n]
        assert found[n] == found[n + len(BAD) + 1]


def test_the_error_names_the_sources_of_the_first_and_counts_the_rest():
    golds = ["18", *[f"\\frac{{1}}{{{n}" for n in range(7)], r"\text{Evelyn}"]
    sources = [f"train.jsonl:{n}" for n in range(1, len(golds) + 1)]
    with pytest.raises(ValueError, match="7 gold answers cannot be judged") as raised:
        check_golds(golds, sources, processes=1)
    lines = str(raised.value).splitlines()[1:]
    assert lines[0] == r"train.jsonl:2: math-verify cannot parse '\\frac{1}{0'"
    assert [re.match(r"train\.jsonl:(\d)|and 2 more", line)[1] for line in lines] == [
        *"23456",
        None,
    ]


def test_a_gold_that_is_no_text_is_named():
    with pytest.raises(ValueError, match=r"a\.jsonl:2: 18 is no text"):
        check_golds(["18", 18], ["a.jsonl:1", "a.jsonl:2"])  # type: ignore[list-item]


def test_good_golds_pass():
    golds = ["18", "1,234", "(B)", r"\text{Evelyn}", "6:00", "2516_8", r"\frac12", r"\frac12"]
    check_golds(golds, [""] * len(golds), processes=1)
