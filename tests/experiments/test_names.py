"""The command line that `docs/names.md` gives for a title is that of the title."""

import re

from ogrpo.cli.options import parse
from ogrpo.config.method import title
from tests.names import PAGE


def test_the_command_gives_the_title():
    stated, command = re.search(r"For\s`(.*?)` give `(.*?)`", PAGE.read_text(), re.DOTALL).groups()
    assert title(parse(command.split(), program="train", preset="default")) == stated
