import pytest

from tests.policy.tiny import make_case


@pytest.fixture(scope="session")
def qwen2():
    """A tiny Qwen2 decoder's config and parameters, and a ragged batch."""
    return make_case()
