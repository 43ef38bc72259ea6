"""The parity suite needs its yardsticks, torch and transformers; without them it is left out."""

import os
from importlib.util import find_spec

MISSING = [name for name in ("torch", "transformers") if find_spec(name) is None]

if MISSING:
    collect_ignore_glob = ["test_*.py"]

# Nothing here may reach for the hub: every model is made on the spot.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_terminal_summary(terminalreporter) -> None:
    if MISSING:
        terminalreporter.write_line(
            f"parity suite left out: no {' and no '.join(MISSING)}"
            " (pip install -e '.[test,parity]' brings both)"
        )
