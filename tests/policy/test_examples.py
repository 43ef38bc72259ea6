import doctest

import ogrpo.policy


def test_the_example_of_the_package_runs():
    result = doctest.testmod(ogrpo.policy)
    assert result.attempted > 5
    assert result.failed == 0
