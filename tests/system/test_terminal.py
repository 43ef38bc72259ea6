"""Control sequences in somebody else's text are shown, and not obeyed."""

import pytest

from ogrpo.system.terminal import shown, without_secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J \x85 \x7f \r\b\0", r"\x9b2J \x85 \x7f \r\x08\x00"),
        ("\u202egnp.exe \u2066a\u2069 \u200f", r"\u202egnp.exe \u2066a\u2069 \u200f"),
        ("\u2028\u2029\ud800\U000e0041", r"\u2028\u2029\ud800\U000e0041"),
        ("lines\nand\ttabs", "lines\nand\ttabs"),
        ("Größe 你好 שלום 😀 €\u00a0½ \\x1b", "Größe 你好 שלום 😀 €\u00a0½ \\x1b"),
    ],
)
def test_nothing_in_a_text_is_a_command_to_the_terminal(text, expected):
    assert shown(text) == expected
    shown(text).encode("utf-8")


@pytest.mark.parametrize(
    "text",
    ["http://me:SECRET@h", "x https://SECRET@h/p y", "http://h/?key=SECRET", "http://me:SE@CRET@h"],
)
def test_addresses_lose_their_secrets(text):
    assert "CRET" not in without_secrets(text)
    assert without_secrets(f"'{text}': no") == without_secrets(f"'{text}'") + ": no"
