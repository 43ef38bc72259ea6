"""The worker extension's choices that no server here can show; pushes to vLLM are in tests/server."""

import subprocess
import sys
from pathlib import Path

from ogrpo.rollout import extension

NAMES = """
import ogrpo_weight_sync
print(*[name for name in dir(ogrpo_weight_sync.WeightSync) if not name.startswith("__")])
"""


def test_the_extension_shares_no_name_with_a_worker():
    """vLLM refuses one that does; every public name is its own."""
    folder = Path(extension.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", NAMES], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ogrpo_describe", "ogrpo_stage_adapter"]
