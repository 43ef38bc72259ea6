"""TRL's own loss code as a yardstick, where it is installed (`pip install trl`)."""

import warnings
from importlib.util import find_spec

import pytest

if find_spec("trl") is None or find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def trl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's imports
        import trl
        import trl.rewards
        from trl import GRPOConfig, GRPOTrainer  # noqa: F401 - loaded when they are named
    return trl
