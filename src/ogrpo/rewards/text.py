r"""Answers that are words and not mathematics, and what is put aside when texts are compared.

math-verify reads a word as a product of letters, so that "listen" equals "silent"; it reads a time
as a quotient, and leaves out the base of `2516_8`. Such gold answers are compared as texts.
"""

import re

_WRAPPER = r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf)\s*"
_WRAPPED = re.compile(_WRAPPER + r"\{([^{}]*)\}")
_WHOLLY_WRAPPED = re.compile(_WRAPPED.pattern + r"\Z")
_BASE_BRACES = re.compile(r"_\{([0-9]+)\}")
SPACES = re.compile(r"(?:\\[ ,;!]|[~\s])+")
"""A run of blanks, LaTeX's among them."""
_CHOICE = re.compile(r"\(?([A-Za-z])\)")
_LETTER = re.compile(r"[A-Ea-e]\Z")
_WORDS = re.compile(r"[^\W\d_]+(?:[' .,-]+[^\W\d_]+)*[ .]*\Z")
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")
_NO_WORDS = {"and", "inf", "infinity"}  # math-verify understands them
_SHORT_WORDS = {"no"}  # others of two letters may be products
_NUMBER_FIRST = re.compile(r"[-+.$\\\s]*[0-9]")
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}(?!.*[:/])")
_NOON = re.compile(r"(?<=[0-9]) ?([ap])\.? ?m\b\.?")
_BASE_N = re.compile(r"[0-9A-Z]+_(?:[0-9]+|\{[0-9]+\})\Z")
_DELIMITED = re.compile(
    r"(\$\$?)(?P<dollars>[^$]+)\1\Z"
    r"|\\\((?P<inline>(?:(?!\\[()]).)+)\\\)\Z"
    r"|\\\[(?P<display>(?:(?!\\[\[\]]).)+)\\\]\Z",
    re.S,
)
_PERCENT = re.compile(r"(?:\\?%|\\text\{\s*percent\s*\}|(?<=[0-9} ])percent)\Z")
_UPRIGHT = re.compile(r"(\\[A-Za-z]+)?\\(?:mathrm|operatorname)\s*\{([ei])\}")
_CHARACTERS = {
    **{0xFF01 + n: chr(0x21 + n) for n in range(94)},  # full-width forms
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-"),
}
_RAISED = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-"
)
_EXPONENT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")
_SIGNS = {"°": r"^\circ ", "∞": r"\infty ", "·": r"\cdot ", "≈": r"\approx ", "∅": r"\emptyset "}
_SIGNS |= {"½": r"\frac12", "⅓": r"\frac13", "⅔": r"\frac23", "¼": r"\frac14", "¾": r"\frac34"}
_SIGNS |= {r"\degree": r"^\circ ", r"\varnothing": r"\emptyset ", "{:}": ":"}
_WRITTEN = re.compile("|".join(map(re.escape, _SIGNS)) + r"|\\!\s*")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_THIN_SPACE = re.compile(r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))")
_THOUSANDS_OF_PERCENT = re.compile(
    r"-?[1-9][0-9]{0,2}(?:(?:,|\{,\})[0-9]{3})+(?:\.[0-9]+)?\s*\\%\Z"
)
_ABOUT = re.compile(r"\A\s*\\(?:approx|simeq)\b\s*|(?<!\\right)(?<!\s)\s*\.\s*\Z")
_NOUNS = re.compile(r"(?<=[0-9}]) +((?!(and|abc|pqr|xyz)\b)[a-z]{3,}(?: +[A-Za-z]{2,})*)\Z")
_LABEL = re.compile(
    r"\A(?:\\(?:text(?:bf|rm)?|math(?:bf|rm))\s*\{\s*)?(?:\(([A-E])\)|([A-E])[.)](?=[\s}]))\s*+\}?"
    r"(?:\\[ ,;]|\\q?quad|[\s~])*(?=[-$0-9]|\\(?:[dt]?frac|sqrt|pi|\$))"
)
_MIXED = re.compile(
    r"\A(-?)([0-9]{1,9})(?:(?:\s|\\[ ,;])+([0-9]{1,9})/([0-9]{1,9})(?![0-9])"
    r"|(?:\s|\\[ ,;])*\\[dt]?frac\s*(?:\{([0-9]{1,9})\}|([0-9]))"
    r"\s*(?:\{([0-9]{1,9})\}|([0-9]))(?=\s*\\%))"
)
_REPEATING = re.compile(
    r"(?<![0-9.,])([0-9]{0,9})\.([0-9]{0,9})\\(?:overline|bar)\s*(?:\{([0-9]{1,9})\}|([0-9]))"
)
_RATIO = re.compile(r"\s*([1-9][0-9]*)((?:\s*:\s*[0-9]+){2,})\s*\Z")
_POWER_OF_TEN = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})\Z")
_EUROPEAN = re.compile(
    r"-?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+\Z|-?[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}\Z"
)
_BLANKS = re.compile(r"-?[1-9][0-9]{0,2}(?:(?:\\[ ,]|[~\s])[0-9]{3})+(?:\.[0-9]+)?\Z")


def ascii_minus(text: str) -> str:
    """Writes hyphens, the figure and en dash and the minus sign as "-", full-width forms as ASCII.

    >>> ascii_minus("\N{MINUS SIGN}7, \N{EN DASH}\N{FULLWIDTH DIGIT SEVEN}")
    '-7, -7'
    """
    return text.translate(_CHARACTERS)


def plain_writing(text: str) -> str:
    r"""Writes as LaTeX what math-verify does not read.

    These are exponents, roots, fractions and signs in Unicode, powers of ten, decimal commas,
    blanks or points between thousands, mixed numbers, repeating decimals, ratios of three numbers,
    an "approximately" or a choice's letter before, a full stop, and words behind a number.

    >>> [plain_writing(text) for text in ("x\N{SUPERSCRIPT TWO}", "1e3", "1.234,5", "2e")]
    ['x^{2}', '1 \\times 10^{3}', '1234.5', '2e']
    >>> [plain_writing(text) for text in ("2√3", r"12\,000", r"\approx 3.1", "90°")]
    ['2\\sqrt{3}', '12000', '3.1', '90^\\circ ']
    >>> [plain_writing(text) for text in ("18 apples", "75 percent", r"\textbf{(B)}\ 5")]
    ['18\\text{ apples}', '75 \\%', '5']
    >>> [plain_writing(text) for text in ("3 1/2", r"33\frac13\%", r"0.1\overline{6}", "2:3:5")]
    ['\\frac{7}{2}', '\\frac{100}{3}\\%', '\\frac{15}{90}', '(1, \\frac{3}{2}, \\frac{5}{2})']
    """
    text = _EXPONENT.sub(lambda raised: f"^{{{raised[0].translate(_RAISED)}}}", ascii_minus(text))
    text = _WRITTEN.sub(lambda sign: _SIGNS.get(sign[0], ""), text)
    text = _THIN_SPACE.sub("", _ROOT.sub(r"\\sqrt{\1\2}", text))
    text = _PERCENT.sub(r"\\%", _LABEL.sub("", _ABOUT.sub("", text)))
    text = _NOUNS.sub(r"\\text{ \1}", text)
    text = _REPEATING.sub(_repeating, _MIXED.sub(_mixed, text))
    if power := _POWER_OF_TEN.match(text):
        return rf"{power[1]} \times 10^{{{int(power[2])}}}"
    if ratio := _RATIO.match(text):
        others = [f"\\frac{{{part}}}{{{ratio[1]}}}" for part in re.findall("[0-9]+", ratio[2])]
        return f"(1, {', '.join(others)})"
    if _THOUSANDS_OF_PERCENT.match(text):
        return text.replace("{,}", "").replace(",", "")
    if _BLANKS.match(text):
        return SPACES.sub("", text)
    if _EUROPEAN.match(text):
        return text.replace(".", "").replace(",", ".")
    return text


def _mixed(match: re.Match[str]) -> str:
    sign, whole, above, below = filter(lambda group: group is not None, match.groups())
    return f"{sign}\\frac{{{int(whole) * int(below) + int(above)}}}{{{int(below)}}}"


def _repeating(match: re.Match[str]) -> str:
    whole, first, period = match[1], match[2], match[3] or match[4]
    above = int(whole + first + period) - int(whole + first or "0")
    return f"\\frac{{{above}}}{{{10 ** len(first) * (10 ** len(period) - 1)}}}"


def without_wrappers(text: str) -> str:
    r"""Returns a text with the words in `\text{...}`, `\mbox{...}` and their like as plain words.

    >>> without_wrappers(r"12\text{ cm}")
    '12  cm'
    """
    return _WRAPPED.sub(r" \1", text)


def undelimited(text: str) -> str:
    r"""Returns what is in the `$...$`, `$$...$$`, `\(...\)` or `\[...\]` that the whole text is.

    >>> undelimited("$12:00$"), undelimited(r"\(x\)"), undelimited("$1$ or $2$"), undelimited("$5")
    ('12:00', 'x', '$1$ or $2$', '$5')
    """
    whole = _DELIMITED.match(text.strip())
    return whole[whole.lastgroup or 0].strip() if whole else text.strip()


def upright_constants(text: str) -> str:
    r"""Writes the constants e and i as letters, which is how math-verify understands them.

    >>> upright_constants(r"\mathrm{e}^{2\pi\mathrm{i}}")
    'e^{2\\pi i}'
    """
    return _UPRIGHT.sub(lambda match: f"{match[1]} {match[2]}" if match[1] else match[2], text)


def unboxed(text: str) -> str:
    r"""Returns what is in the `\boxed{...}` that the whole text is, without a full stop at its end.

    A text that is no box is returned as it is, but stripped.

    >>> unboxed(r"\boxed{\frac{1}{2}.}"), unboxed("18 ")
    ('\\frac{1}{2}', '18')
    """
    inside = text.removeprefix("\\boxed{")
    if inside == text:
        return text.strip()
    return inside.removesuffix("}").strip().removesuffix(".").strip()


def is_text(gold: str) -> bool:
    r"""Tells whether a gold answer is to be compared as a text, and not as mathematics.

    So are a wrapped text that does not begin with a number, words (one of three letters, or "no"),
    a choice in parentheses, a time of day and a number with its base.

    >>> [is_text(gold) for gold in (r"\text{Evelyn}", "no solution", "(B)", "6:00", "2516_8")]
    [True, True, True, True, True]
    >>> [is_text(gold) for gold in ("B", "xy", r"12\text{ cm}", r"\text{12 cm}", "(1, 2)", "2:3")]
    [False, False, False, False, False, False]
    """
    gold = gold.strip()
    content = unwrapped(gold)
    if content != gold:
        return _NUMBER_FIRST.match(content) is None or _TIME.match(content) is not None
    if _CHOICE.fullmatch(gold) or _TIME.match(gold) or _BASE_N.match(gold):
        return True
    words = _LONG_WORD.findall(gold.casefold()) if _WORDS.match(gold) else []
    return bool(set(words) - _NO_WORDS) or gold.casefold() in _SHORT_WORDS


def without_percent(text: str) -> str:
    r"""Returns a text without the percent sign at its end.

    >>> without_percent(r"12.5\%"), without_percent("12.5 %"), without_percent("12.5")
    ('12.5', '12.5', '12.5')
    """
    return _PERCENT.sub("", text).rstrip()


def unwrapped(text: str) -> str:
    r"""Returns what is in the `\text{...}` (or `\mbox`, `\mathrm`, ...) that the whole text is.

    >>> unwrapped(r"\text{12 cm}"), unwrapped(r"12\text{ cm}")
    ('12 cm', '12\\text{ cm}')
    """
    whole = _WHOLLY_WRAPPED.match(text.strip())
    return whole[1].strip() if whole else text


def is_choice(gold: str) -> bool:
    """Returns whether a gold answer is one letter that may be a choice, and not a variable's case.

    >>> [is_choice(gold) for gold in ("B", "b", "x", "AB")]
    [True, True, False, False]
    """
    return _LETTER.match(gold.strip()) is not None


def same_text(answer: str, gold: str) -> bool:
    r"""Compares two texts but for case, spaces, LaTeX's wrappers and the punctuation around.

    What an answer says beside the letter of a choice does not count, unless it is another letter.

    >>> same_text(r"\textbf{(b)}", "B"), same_text("Evelyn.", r"\text{Evelyn}")
    (True, True)
    >>> same_text("2516_9", "2516_8"), same_text("B, E", "B,E"), same_text("(B) 12", "B")
    (False, True, True)
    """
    label = _LABEL.match(answer)
    if label and not re.search(r"(?<![A-Za-z])[A-E](?![A-Za-z])", answer[label.end() :]):
        return _bare(gold) in (_bare(answer), (label[1] or label[2]).casefold())
    return bool(_bare(answer)) and _bare(answer) == _bare(gold)


def _bare(text: str) -> str:
    text = _WRAPPED.sub(r"\1", ascii_minus(text).replace("\\$", "").replace("$", ""))
    text = SPACES.sub(" ", _BASE_BRACES.sub(r"_\1", text)).strip(" .,;:!").casefold()
    text = re.sub(" ?, ?", ",", _NOON.sub(r" \1m", text))
    choice = _CHOICE.fullmatch(text)
    return choice[1] if choice else text
