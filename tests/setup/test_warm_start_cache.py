"""Cached warm starts are found again by the same run, and by no other code."""

from ogrpo.learner import state
from ogrpo.policy import decoder
from ogrpo.setup import imitation
from ogrpo.setup.find_task import find_task
from ogrpo.setup.model import tiny_decoder
from ogrpo.setup.prepare import make_tokenizer
from ogrpo.setup.presets import main_study


def test_a_cached_warm_start_is_of_the_code_that_made_it(monkeypatch, tmp_path):
    config = main_study()
    found = find_task(config)
    tokenizer = make_tokenizer(config, found.task)
    shape = tiny_decoder(tokenizer)
    sources = imitation._sources()
    assert {decoder.__file__, state.__file__, imitation.__file__} <= {str(s) for s in sources}

    def folder():
        recipe = imitation.warm_start_recipe(config, shape, tokenizer, found.lessons)
        return imitation._cache_folder(recipe)

    same = folder()
    assert folder() == same
    changed = tmp_path / "state.py"
    changed.write_text("# another optimizer\n")
    others = [source for source in sources if str(source) != state.__file__]
    monkeypatch.setattr(imitation, "_sources", lambda: [*others, changed])
    assert folder() != same
