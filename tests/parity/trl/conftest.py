"""TRL's own loss code as a yardstick, where it is installed (`pip install trl`)."""

from importlib.util import find_spec

if find_spec("trl") is None or find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
