"""An interpreter with any version of vLLM."""

import pytest


@pytest.fixture
def python_with(tmp_path):
    """Makes an interpreter that has a version of vLLM; returns its path."""

    def make(version):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
        return str(python)

    return make
