import pytest

from experiments.grid import page


@pytest.fixture
def unrendered(monkeypatch):
    """Figures are composed and not rendered, which is most of a page's time."""
    monkeypatch.setattr(page, "save_figure", lambda figure, path: path.write_bytes(b"PNG"))
