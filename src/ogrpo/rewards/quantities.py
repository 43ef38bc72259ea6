r"""Units, sides of an equation, capitals of variables: math-verify puts them aside.

It compares `5\text{ km}` with `5\text{ cm}` as 5 and 5, takes one side of `8=7` for the answer, and
reads `X` as `x`. Answers that differ in these are judged before it, or compared by it in parts.
"""

import re
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from ogrpo.rewards.text import SPACES, is_choice, without_wrappers


class Unit(NamedTuple):
    """A unit by what it measures, and its size in the smallest unit of the kind."""

    kind: str
    size: Fraction


_SIZES = {
    "length": {
        "mm millimeter millimetre": "1/1000",
        "cm centimeter centimetre": "1/100",
        "dm decimeter decimetre": "1/10",
        "m meter metre": "1",
        "km kilometer kilometre": "1000",
        "in inch inches": "0.0254",
        "ft foot feet": "0.3048",
        "yd yard": "0.9144",
        "mi mile": "1609.344",
    },
    "mass": {
        "mg milligram": "1/1000",
        "g gram": "1",
        "kg kilogram": "1000",
        "oz ounce": "28.349523125",
        "lb lbs pound": "453.59237",
    },
    "time": {
        "ms millisecond": "1/1000",
        "s sec second": "1",
        "min minute": "60",
        "h hr hour": "3600",
        "day": "86400",
        "week": "604800",
    },
    "length^3": {"ml milliliter millilitre": "1/1000000", "l L liter litre": "1/1000"},
    "money": {"cent": "1/100", "dollar": "1"},
    "count": {
        "dozen": "12",
        "hundred": "1e2",
        "thousand": "1e3",
        "million": "1e6",
        "billion": "1e9",
    },
    "Celsius": {"celsius C": "1"},
    "Fahrenheit": {"fahrenheit F": "1"},
    "before noon": {"a.m am": "1"},
    "after noon": {"p.m pm": "1"},
}
UNITS = {
    name + ending: Unit(kind, Fraction(size))
    for kind, units in _SIZES.items()
    for names, size in units.items()
    for name, ending in product(names.split(), ("", "s", "."))
}
_M = (UNITS["minute"], UNITS["million"])
"""What an m behind a number may mean besides metres."""
POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3, "degree": 1, "degrees": 1}
_QUANTITY = re.compile(
    r"(?P<number>.*(?:[0-9})!]|\\pi))\s*(?P<words>[A-Za-z][A-Za-z. ]*?)\s*"
    r"(?:\^\{?(?P<power>[23])\}?)?(?:\s*(?:/|\bper\b)\s*(?P<per>[A-Za-z]+))?\.?\Z",
    re.S,
)
_MONEY = re.compile(r"(?P<sign>-?)(?P<currency>\\?\$|[€£¥])\s*(?P<number>[0-9.][0-9.,{}]*)\Z")
_DEGREES = re.compile(r"(?<=[0-9}]) *\^\{?\\circ ?\}? *([CF])\Z")
_RESIDUE = re.compile(
    r"(?:(?:[A-Za-z] ?|[^A-Za-z\\]+)\\equiv *)?(?P<number>[0-9]{1,9}) *\(? *"
    r"\\?[pb]?mod *\{?(?P<modulus>[0-9]{1,9})\}?\)?\Z"
)
_NAMED = re.compile(r" *([a-dx-z]) *= *([^=]+)")
_BETWEEN = re.compile(r" *(?:,|;|\\text *\{ *(?:and|,) *\}|\\q?quad|\band\b)+")
_IN_PARTS = {"length", "mass", "time", "money"}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *([A-Za-z]+)\.? *,? *(?:and )?")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\})(?=[0-9]{3}(?![0-9]))")
_PAIR = re.compile(r"(?:[(\[]|\\\{)[^)\]}]*,")
_QUALIFIED = re.compile(
    r"(?<!\\)\b(?:or (?:fewer|less|more|greater|higher|lower|above|below)|at (?:least|most)"
    r"|(?:fewer|less|more|greater) than|and (?:an?|one|two|three) \w+"
    r"|(?:plus|minus|times|over|point|mod|base|choose|divided by)"
    r" (?:[0-9]+|one|two|three|four|five|six|seven|eight|nine|ten)|factorial|below zero|not exist"
    r"|[0-9]+\s+(?:squared|cubed|halves|(?:third|fourth|fifth|(?:ten|hundred|thousand)th)s)"
    r"|1\s+half|1\s+(?:third|fourth|fifth|(?:ten|hundred|thousand)th)\Z)\b"
)
MOST_SIDES = 8
"""Sides of an equation that are compared, each within the time bound of a comparison."""
_COMMAND = re.compile(r"\\[A-Za-z]+")
_EQUALS = re.compile(r"(?<![<>!:])=")
_BASE_N = re.compile(r"([0-9A-Z]{1,32})_\{?([0-9]{1,2})\}?\Z")
_DECIMAL = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?\Z")
_APPROXIMATELY = re.compile(r"\\approx|\\simeq")


class Quantity(NamedTuple):
    """A number as it is written, and its unit, which may be per another."""

    number: str
    unit: Unit
    per: Unit | None = None


def quantity(text: str, *, bare: bool = False) -> Quantity | None:
    r"""Returns a number with a unit that is known, or one such unit per another, or None.

    A unit of one letter is one only within `\text{...}`, unless `bare`: `5m` may be five times m.

    >>> quantity(r"12\text{ square cm}")
    Quantity(number='12', unit=Unit(kind='length^2', size=Fraction(1, 10000)), per=None)
    >>> quantity("5m") is quantity("5 apples") is None
    True
    >>> quantity(r"1\text{ hour and }30\text{ minutes}").number, quantity(r"3 \pmod{7}").unit.kind
    ('\\frac{3}{2}', 'modulo 7')
    """
    plain = SPACES.sub(" ", without_wrappers(text)).strip()
    plain = re.sub(r"\bmph\b", "miles/hour", plain)
    plain = _DEGREES.sub(r" \1", plain)
    if money := _MONEY.match(plain):
        unit = UNITS["dollar"] if "$" in money["currency"] else Unit(money["currency"], Fraction(1))
        return Quantity(money["sign"] + money["number"], unit)
    residue = _RESIDUE.match(plain)
    if residue and int(residue["number"]) < int(residue["modulus"]):
        return Quantity(residue["number"], Unit(f"modulo {residue['modulus']}", Fraction(1)))
    if re.fullmatch(f"(?:{_PART.pattern}){{2,4}}", plain) and (
        total := _sum_of_parts(_PART.findall(plain))
    ):
        return total
    match = _QUANTITY.match(plain)
    if match is None or (len(match["words"]) == 1 and plain == text.strip() and not bare):
        return None
    words = match["words"].split()
    power = int(match["power"] or POWERS.get(words[0].lower(), 1))
    words = words[1:] if words[0].lower() in POWERS else words
    names = [*words, *filter(None, [match["per"]])]
    keys = [name if len(name) == 1 else name.lower() for name in names]
    if len(words) != 1 or not UNITS.keys() >= set(keys):
        return None
    unit, per = UNITS[keys[0]], UNITS[keys[1]] if match["per"] else None
    kind = unit.kind if power == 1 else f"{unit.kind}^{power}"
    return Quantity(match["number"].strip(), Unit(kind, unit.size**power), per)


def _sum_of_parts(pieces: list[tuple[str, str]]) -> Quantity | None:
    """Returns 3 hours 20 minutes in hours; None of several kinds, or not from the largest on."""
    keys = [name if len(name) == 1 else name.lower() for _, name in pieces]
    units = [UNITS[key] for key in keys if key in UNITS and UNITS[key].kind in _IN_PARTS]
    sizes = [unit.size for unit in units]
    falling = all(large > small for large, small in pairwise(sizes))
    if len(units) < len(pieces) or len({unit.kind for unit in units}) > 1 or not falling:
        return None
    total = sum(Fraction(n) * size for (n, _), size in zip(pieces, sizes, strict=True)) / sizes[0]
    return Quantity(f"\\frac{{{total.numerator}}}{{{total.denominator}}}", units[0])


def _ratio(ours: Quantity, theirs: Quantity) -> Fraction | None:
    """Returns our unit over theirs, None of different kinds; what both are per counts, too."""
    pairs = [(ours.unit, theirs.unit)]
    if ours.per is not None and theirs.per is not None:
        pairs.append((theirs.per, ours.per))
    alike = all(above.kind == below.kind for above, below in pairs)
    sizes = (above.size / below.size for above, below in pairs)
    return prod(sizes, start=Fraction(1)) if alike else None


def surely_wrong(answer: str, gold: str) -> bool:
    r"""Returns whether math-verify would pass over what makes an answer another one than the gold.

    An answer that is an equation of more than `MOST_SIDES` sides is wrong, too, where the gold
    answer is none.

    >>> surely_wrong(r"5\text{ m}^2", r"5\text{ m}^3"), surely_wrong("5", r"5\text{ m}^3")
    (True, False)
    >>> surely_wrong("X+1", "x+1"), surely_wrong(r"6\text{ or fewer}", "6"), surely_wrong("c", "C")
    (True, True, False)
    >>> surely_wrong(r"7 \approx 8", "7"), surely_wrong(r"3.14159 \approx 3.14", "3.14159")
    (True, False)
    """
    theirs = quantity(gold)
    ours = quantity(
        answer, bare=theirs is not None and not (answer[-1:] == "m" and theirs.unit in _M)
    )
    if ours and theirs and _ratio(ours, theirs) is None:
        return True
    names, gold_names = _named_values(answer).keys(), _named_values(gold).keys()
    if names and gold_names and names != gold_names:
        return True
    words = without_wrappers(ours.number if ours else answer)
    if _QUALIFIED.search(words) and not _QUALIFIED.search(without_wrappers(gold)):
        return True
    if "=" not in gold and len(_EQUALS.findall(answer)) >= MOST_SIDES:
        return True
    sides = [side.strip() for side in _APPROXIMATELY.split(answer)]
    if len(sides) == 2 and all(map(_DECIMAL.match, sides)):
        places = len(sides[1].partition(".")[2])
        if abs(Fraction(sides[0]) - Fraction(sides[1])) >= Fraction(1, 10**places):
            return True
    if "=" in answer + gold or is_choice(gold) or (ours and theirs):
        return False
    letters, gold_letters = _variables(answer), _variables(gold)
    other_case = {v.lower() for v in letters} == {v.lower() for v in gold_letters}
    return letters != gold_letters and other_case


def in_order(text: str) -> str:
    r"""Returns the values of x, y and z, or of a to d, as a tuple in the order of these names.

    >>> in_order("y=3, x=2"), in_order(r"x=1\text{ or }x=2")
    ('(2, 3)', 'x=1\\text{ or }x=2')
    """
    values = _named_values(text)
    return f"({', '.join(value for _, value in sorted(values.items()))})" if values else text


def _named_values(text: str) -> dict[str, str]:
    pieces = [_NAMED.fullmatch(piece) for piece in _BETWEEN.split(SPACES.sub(" ", text))]
    values = {piece[1]: piece[2].strip() for piece in pieces if piece}
    alike = any(values.keys() <= set(names) for names in ("xyz", "abcd"))
    return values if 1 < len(values) == len(pieces) and alike else {}


def without_thousands(text: str, gold: str) -> str:
    """Returns a text without the commas between thousands, where the gold has no other ones.

    >>> without_thousands("x = 1,200", "1200"), without_thousands("(1,200)", "(1,200)")
    ('x = 1200', '(1,200)')
    """
    others = _PAIR.search(gold) or "," in _THOUSANDS.sub("", gold)
    return text if others else _THOUSANDS.sub("", text)


def parts(answer: str, gold: str) -> list[str]:
    r"""Returns what has to equal the gold's number, each part; the answer alone as a rule.

    A unit of the answer is put aside, or converted, where the gold answer has one or is a number.

    >>> parts("8 = 7", "7"), parts("x = 7", "7"), parts("100_2", "4")
    (['8', '7'], ['x = 7'], ['4'])
    >>> parts(r"500\text{ cm}", r"5\text{ m}")
    ['(500) \\cdot \\frac{1}{100}']
    """
    if "=" in answer + gold:
        answer = without_thousands(answer, gold)
    theirs, ratio = quantity(gold), Fraction(1)
    ours = quantity(answer, bare=theirs is not None or is_number(gold))
    if ours and (theirs or is_number(gold)):
        ratio = (theirs and _ratio(ours, theirs)) or ratio
        answer = ours.number
    if (based := _BASE_N.match(answer)) and "_" not in gold and ratio == 1:
        try:
            return [str(int(based[1], int(based[2])))]
        except ValueError:
            return [answer]
    rounded = answer.rpartition(r"\approx")[2].strip()
    if "." in gold and all(map(_DECIMAL.match, (rounded, gold))):
        answer = rounded if Fraction(rounded) == Fraction(gold) else answer
    sides = [side.strip() for side in _EQUALS.split(answer)]
    numbers = [side for side in sides if is_number(side)]
    if ratio != 1:
        factor = rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
        whole = [_THOUSANDS.sub("", side) for side in numbers or [answer]]  # (1,200) is a pair
        return [rf"({number}) \cdot {factor}" for number in whole]
    return numbers if len(numbers) > 1 and "=" not in gold else [answer]


def is_number(side: str) -> bool:
    """Returns whether a text has digits, and no letters but those of commands."""
    bare = _COMMAND.sub("", side)
    return any(c.isdigit() for c in bare) and not any(c.isalpha() for c in bare)


def _variables(text: str) -> set[str]:
    bare = _COMMAND.sub(" ", re.sub(r"\\[a-z]+\s*\{[^{}\\]*[A-Za-z]{2}[^{}]*\}", " ", text))
    return {c for c in bare if c.isalpha() and c.isascii()}
