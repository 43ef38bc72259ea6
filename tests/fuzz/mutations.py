"""Files with something wrong in them: bytes and fields that are changed at random, from a seed."""

import json
import random
from collections.abc import Iterator
from typing import Any

VALUES = [
    *(None, True, False, 0, 1, -1, 2, 0.0, 1.0, -0.5, 1e308, 2**31, 2**63, 10**30, -(2**63)),
    *("", "0", "false", "..", "/etc/passwd", "../x.safetensors", "\x1b[31m", "\0", "F32", "%s"),
    *([], [[]], {}, {"": {}}, [0, 1], [16, 0], [-8, 8], ["a"], [None], "x" * 5000, [1] * 5000),
]
PIECES = [
    *(b"NaN", b"Infinity", b"1e999", b"9" * 5000, b"[" * 5000, b'{"a":' * 5000, b'"\\ud800"'),
    *(b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"\xef\xbb\xbf", b",", b"}", b'"', b"\\", b"\n", b"*a"),
    *(b"{% for i in range(99999) %}", b"{{ 9 ** 9 ** 9 }}", b"&a [*a, *a]", b"!!python/name:os.x "),
]


def broken(raw: bytes, rng: random.Random) -> bytes:
    """The content with one to three things wrong."""
    for _ in range(rng.randint(1, 3)):
        raw = rng.choice((_flip, *[_splice] * 4, *[_fields] * 3))(raw, rng)
    return raw


def _flip(raw: bytes, rng: random.Random) -> bytes:
    if not raw:
        return raw
    mutated = bytearray(raw)
    for _ in range(rng.choice((1, 1, 4, 16))):
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
    return bytes(mutated)


def _splice(raw: bytes, rng: random.Random) -> bytes:
    """The end cut off, a stretch taken out, a piece put in, or a stretch doubled."""
    begin = rng.randint(0, len(raw))
    end, piece = rng.choice(
        (
            (len(raw), b""),
            (begin + rng.choice((1, 8, 64)), b""),
            (begin, rng.choice(PIECES)),
            (begin, raw[begin : begin + 64]),
        )
    )
    return raw[:begin] + piece + raw[end:]


def _fields(raw: bytes, rng: random.Random) -> bytes:
    """JSON with a value replaced, taken out or swapped with another; other content as it was."""
    head, tail = b"", b""
    if raw[8:9] == b"{":  # a safetensors header, with what follows it
        size = int.from_bytes(raw[:8], "little")
        head, raw, tail = raw[:8], raw[8 : 8 + size], raw[8 + size :]
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return head + raw + tail
    _change(value, rng)
    new = json.dumps(value).encode()
    return (len(new).to_bytes(8, "little") if head else b"") + new + tail


def _change(value: Any, rng: random.Random) -> None:
    places = list(_places(value)) if isinstance(value, dict | list) else []
    if not places:
        return
    holder, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, name = rng.choice(places)
        holder[key], other[name] = other[name], holder[key]
    elif kind == 2 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif kind == 3 and type(holder[key]) in (int, float):
        holder[key] = rng.choice((holder[key] + 1, -holder[key], holder[key] * 10**6, 1.5))
    else:
        holder[key] = rng.choice(VALUES)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    inner = list(value) if isinstance(value, dict) else range(len(value))
    for key in inner:
        yield value, key
        if isinstance(value[key], dict | list) and depth < 4:
            yield from _places(value[key], depth + 1)
