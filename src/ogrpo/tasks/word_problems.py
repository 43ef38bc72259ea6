"""Word problems in plain English, made from a seed, for models that can read.

    Nadia packs 6 boxes with 12 candles each. Her brother is 9 years old. She sells 15 of the
    candles. How many candles does Nadia have left?

A problem is a story of one to three steps: one of `STORIES` with names, things, numbers and
wordings of its own, and in one of five a sentence with a number that has nothing to do with it.
Answers are whole numbers. Train, validation and test problems come from streams of their own, so
that none depends on how many of a later one there are.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from ogrpo.rewards.extract import last_number
from ogrpo.rewards.math import MathReward
from ogrpo.tasks.example import Example
from ogrpo.tasks.official import ANSWER, SOLUTION, TaskReader, fill, one_of
from ogrpo.tasks.problems import calculate
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

T = TypeVar("T")
NAME = "word-problems"
PROMPT = "{question} Answer in one short sentence that ends with the number."
HELDOUT = 1024
"""Problems of the validation split, and of the test split."""
DISTRACTED = 0.2
"""Share of the problems with a sentence that has nothing to do with the question."""
STREAMS = {"test": 0, "validation": 1, "train": 2}
"""The splits with their seeds; none has a question of one before it."""

WOMEN = (
    *("Nadia", "Grace", "Priya", "Emma", "Lucy", "Hannah", "Maria", "Sofia", "Olivia", "Chloe"),
    *("Aisha", "Rosa", "Ingrid", "Mei", "Clara", "Julia", "Fatima", "Anna", "Ruth", "Paula"),
)
MEN = (
    *("Tom", "Omar", "David", "Peter", "Carlos", "Ben", "Liam", "Noah", "Victor", "Hugo"),
    *("Samuel", "Ivan", "Kenji", "Paul", "Marco", "Felix", "Daniel", "Ali", "George", "Oscar"),
)
THINGS = (
    *("apples", "marbles", "stickers", "books", "coins", "shells", "pencils", "cookies", "candles"),
    *("stamps", "buttons", "oranges", "balloons", "postcards", "toy cars", "tickets", "lemons"),
)
GOODS = (
    *(("notebook", "notebooks"), ("sandwich", "sandwiches"), ("mug", "mugs"), ("scarf", "scarves")),
    *(("ticket", "tickets"), ("plant", "plants"), ("puzzle", "puzzles"), ("cap", "caps")),
)
BOXES = ("boxes", "bags", "baskets", "crates", "jars", "drawers", "shelves", "packets")


class Person(NamedTuple):
    """Somebody in a story, and the pronoun that begins a sentence about them."""

    name: str
    She: str

    @property
    def she(self) -> str:
        """The pronoun within a sentence."""
        return self.She.lower()


class Story(NamedTuple):
    """A problem's sentences, its steps `(left, operator, right)` and the question."""

    facts: list[str]
    question: str
    steps: list[tuple[int, str, int]]
    says: str  # the sentence that answers, `{}` standing for the number at its end

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return calculate(*self.steps[-1])


class StoryDraw:
    """Draws what a story is made of, from a seeded generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._people = [
            *(Person(name, "She") for name in WOMEN),
            *(Person(name, "He") for name in MEN),
        ]

    def number(self, low: int, high: int) -> int:
        """Returns a number between two, both included."""
        return int(self.rng.integers(low, high + 1))

    def one_of(self, *choices: T) -> T:
        """Returns one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def person(self) -> Person:
        """Returns somebody who is not in the story yet."""
        return self._people.pop(int(self.rng.integers(len(self._people))))


def changes(draw: StoryDraw) -> Story:
    """Somebody has some, gets more and gives some away."""
    who, other, things = draw.person(), draw.person(), draw.one_of(*THINGS)
    value, steps = draw.number(5, 20), []
    facts = [f"{who.name} {draw.one_of('has', 'owns')} {value} {things}."]
    for _ in range(draw.one_of(1, 1, 2, 3)):
        if value > 4 and draw.rng.random() < 0.5:
            operator, amount = "-", draw.number(2, value - 2)
            tellings = (
                f"{who.name} gives {amount} {things} to {other.name}.",
                f"{who.She} loses {amount} of them.",
                f"Then {who.she} sells {amount} of the {things}.",
            )
        else:
            operator, amount = "+", draw.number(2, 12)
            tellings = (
                f"{other.name} gives {who.name} {amount} more {things}.",
                f"{who.She} buys {amount} more.",
                f"Then {who.she} finds another {amount} {things}.",
            )
        facts.append(draw.one_of(*tellings))
        steps.append((value, operator, amount))
        value = calculate(*steps[-1])
    question = f"How many {things} does {who.name} have now?"
    return Story(facts, question, steps, f"{who.name} has {{}}")


def packs(draw: StoryDraw) -> Story:
    """Equal boxes, of which some are taken or to which some are added."""
    who, things, boxes = draw.person(), draw.one_of(*THINGS), draw.one_of(*BOXES)
    many, each = draw.number(2, 6), draw.number(3, 9)
    fact = draw.one_of(
        f"{who.name} packs {many} {boxes} with {each} {things} each.",
        f"{who.name} has {many} {boxes}. There are {each} {things} in each of them.",
    )
    steps, total = [(many, "*", each)], many * each
    kind = draw.one_of("all", "all", "left", "more")
    if kind == "left":
        sold = draw.number(2, total - 2)
        steps.append((total, "-", sold))
        verb = draw.one_of("sells", "gives away", "throws away")
        fact += f" {who.She} {verb} {sold} of the {things}."
    elif kind == "more":
        loose = draw.number(2, 20)
        steps.append((total, "+", loose))
        fact += f" {loose} more {things} lie on the table."
    question = {
        "all": f"How many {things} does {who.name} have?",
        "left": f"How many {things} does {who.name} have left?",
        "more": f"How many {things} are there altogether?",
    }[kind]
    return Story([fact], question, steps, f"The number of {things} is {{}}")


def shares(draw: StoryDraw) -> Story:
    """Things shared equally."""
    who, things = draw.person(), draw.one_of(*THINGS)
    friends, each = draw.number(2, 6), draw.number(2, 9)
    total = friends * each
    if draw.rng.random() < 0.5:
        kept, rest = draw.number(1, 9), "the rest"
        facts = [f"{who.name} has {total + kept} {things} and keeps {kept} of them."]
        steps = [(total + kept, "-", kept)]
    else:
        facts, steps = [f"{who.name} has {total} {things}."], []
        rest = draw.one_of("them", "all of them")
    facts.append(f"{who.She} shares {rest} equally among {friends} friends.")
    steps.append((total, "/", friends))
    question = f"How many {things} does each friend get?"
    return Story(facts, question, steps, "Each friend gets {}")


def shopping(draw: StoryDraw) -> Story:
    """A price for each, a total, and change or a second purchase."""
    who, (good, goods) = draw.person(), draw.one_of(*GOODS)
    many, price = draw.number(2, 6), draw.number(2, 9)
    steps, total = [(many, "*", price)], many * price
    tellings = (
        f"A {good} costs {price} dollars. {who.name} buys {many} {goods}.",
        f"{who.name} buys {many} {goods} for {price} dollars each.",
    )
    facts = [draw.one_of(*tellings)]
    kind = draw.one_of("total", "total", "change", "bag")
    if kind == "change":
        paid = next(note for note in (20, 50, 100) if note > total)
        facts.append(f"{who.She} pays with a {paid}-dollar bill.")
        steps.append((paid, "-", total))
        question = f"How many dollars does {who.name} get back?"
        return Story(facts, question, steps, f"{who.name} gets back {{}}")
    if kind == "bag":
        extra = draw.number(2, 30)
        facts.append(f"{who.She} also buys a bag for {extra} dollars.")
        steps.append((total, "+", extra))
    question = f"How many dollars does {who.name} spend{draw.one_of('', ' in total')}?"
    return Story(facts, question, steps, f"{who.name} spends {{}}")


def days(draw: StoryDraw) -> Story:
    """So many a day, for some days, of a whole."""
    who, each, many = draw.person(), draw.number(3, 9), draw.number(2, 7)
    does, what = draw.one_of(
        ("reads", "pages"), ("bakes", "cakes"), ("walks", "miles"), ("paints", "tiles")
    )
    facts, steps = [f"{who.name} {does} {each} {what} a day."], [(each, "*", many)]
    if draw.rng.random() < 0.5:
        question = f"How many {what} is that in {many} days?"
        return Story(facts, question, steps, f"In {many} days it is {{}}")
    whole = each * many + draw.number(2, 30)
    facts.append(f"{who.She} wants to reach {whole} {what}.")
    steps.append((whole, "-", each * many))
    question = f"How many {what} are left after {many} days?"
    return Story(facts, question, steps, f"The number of {what} left is {{}}")


def ages(draw: StoryDraw) -> Story:
    """Two people who are compared."""
    one, two = draw.person(), draw.person()
    age = draw.number(6, 20)
    kind = draw.one_of("older", "younger", "times")
    amount = draw.number(2, 4) if kind == "times" else draw.number(2, min(age - 2, 12))
    than = f"times as old as {one.name}" if kind == "times" else f"years {kind} than {one.name}"
    facts = [f"{one.name} is {age} years old.", f"{two.name} is {amount} {than}."]
    steps = [(age, {"older": "+", "younger": "-", "times": "*"}[kind], amount)]
    other = calculate(*steps[-1])
    if draw.rng.random() < 0.3:
        steps.append((age, "+", other))
        question = f"How old are {one.name} and {two.name} together?"
        return Story(facts, question, steps, "Together they are {}")
    if draw.rng.random() < 0.3:
        later = draw.number(2, 15)
        steps.append((other, "+", later))
        question = f"How old will {two.name} be in {later} years?"
        return Story(facts, question, steps, f"{two.name} will be {{}}")
    return Story(facts, f"How old is {two.name}?", steps, f"{two.name} is {{}}")


def wages(draw: StoryDraw) -> Story:
    """Hours at a rate, and what is spent of them."""
    who, rate, hours = draw.person(), draw.number(5, 12), draw.number(2, 6)
    facts = [f"{who.name} earns {rate} dollars an hour and works {hours} hours."]
    steps, earned = [(rate, "*", hours)], rate * hours
    if draw.rng.random() < 0.4:
        spent = draw.number(2, earned - 2)
        coat = f"Then {who.she} pays {spent} dollars for a coat."
        facts.append(draw.one_of(f"{who.She} spends {spent} dollars on food.", coat))
        steps.append((earned, "-", spent))
        question = f"How many dollars does {who.name} have left?"
        return Story(facts, question, steps, "The number of dollars left is {}")
    question = f"How many dollars does {who.name} earn?"
    return Story(facts, question, steps, f"{who.name} earns {{}}")


def bus(draw: StoryDraw) -> Story:
    """People who get on and off."""
    vehicle = draw.one_of("bus", "train", "ferry", "tram")
    value = draw.number(8, 30)
    facts, steps = [f"There are {value} people on a {vehicle}."], []
    for stop in ("first", "second")[: draw.number(1, 2)]:
        off = draw.number(2, max(3, value // 2))
        steps.append((value, "-", off))
        value -= off
        sentence = f"At the {stop} stop {off} people get off"
        if len(steps) < 3 and draw.rng.random() < 0.5:
            on = draw.number(2, 15)
            steps.append((value, "+", on))
            value += on
            sentence += f" and {on} people get on"
        facts.append(f"{sentence}.")
    question = f"How many people are on the {vehicle} now?"
    return Story(facts, question, steps, f"The number of people on the {vehicle} is {{}}")


def farm(draw: StoryDraw) -> Story:
    """Animals with a yield a day, of which a part is used."""
    who = draw.person()
    animals, gives = draw.one_of(("hens", "eggs"), ("cows", "cans of milk"), ("trees", "plums"))
    many, each = draw.number(3, 9), draw.number(2, 5)
    facts = [f"{who.name} has {many} {animals}. Each of them gives {each} {gives} a day."]
    steps, total = [(many, "*", each)], many * each
    if draw.rng.random() < 0.4:
        used = draw.number(2, total - 2)
        facts.append(f"The family uses {used} {gives} a day and sells the rest.")
        steps.append((total, "-", used))
        question = f"How many {gives} does the family sell a day?"
        return Story(facts, question, steps, "The family sells {}")
    question = f"How many {gives} does {who.name} get a day?"
    return Story(facts, question, steps, f"{who.name} gets {{}}")


def recipe(draw: StoryDraw) -> Story:
    """Ingredients for several of a dish, some of which are there already."""
    who, each, many = draw.person(), draw.number(2, 5), draw.number(2, 6)
    part, dish = draw.one_of(
        ("eggs", "cake"), ("apples", "pie"), ("cups of flour", "loaf"), ("lemons", "jug of juice")
    )
    facts = [f"{who.name} needs {each} {part} for one {dish}."]
    steps, total = [(each, "*", many)], each * many
    if draw.rng.random() < 0.5:
        have = draw.number(1, total - 1)
        facts.append(f"{who.She} has {have} {part} already.")
        steps.append((total, "-", have))
        question = f"How many more {part} does {who.name} need to make {many} of them?"
        return Story(facts, question, steps, f"{who.name} still needs {{}}")
    question = f"How many {part} does {who.name} need to make {many} of them?"
    return Story(facts, question, steps, f"{who.name} needs {{}}")


STORIES: tuple[Callable[[StoryDraw], Story], ...] = (
    *(changes, packs, shares, shopping, days),
    *(ages, wages, bus, farm, recipe),
)


def distraction(draw: StoryDraw) -> str:
    """Returns a sentence with a number that no question asks for."""
    who, things = draw.person(), draw.one_of("cousins", "umbrellas", "clocks", "hats", "keys")
    return draw.one_of(
        f"{who.name}, a neighbor, is {draw.number(20, 80)} years old.",
        f"It is {draw.number(2, 30)} degrees outside.",
        f"{who.name} has {draw.number(2, 40)} {things}.",
        f"The shop around the corner opens at {draw.number(6, 11)} o'clock.",
        f"The street has {draw.number(12, 90)} houses.",
    )


def problems(seed: int, split: str) -> Iterator[tuple[str, str, int]]:
    """Yields questions, worked solutions and answers without end; no question comes twice.

    >>> question, solution, answer = next(problems(0, "train"))
    >>> solution.endswith(f" {answer}.")
    True
    """
    rng = np.random.default_rng([seed, STREAMS[split]])
    seen: set[str] = set()
    while True:
        draw = StoryDraw(rng)
        story = draw.one_of(*STORIES)(draw)
        facts = story.facts
        if rng.random() < DISTRACTED:
            facts.insert(draw.one_of(0, len(facts)), distraction(draw))
        question = " ".join([*facts, story.question])
        if question not in seen:
            seen.add(question)
            worked = " ".join(f"{a} {o} {b} = {calculate(a, o, b)}." for a, o, b in story.steps)
            yield question, f"{worked} {story.says.format(story.answer)}.", story.answer


def read_word_problems(
    path: str | Path | None = None,
    *,
    prompt: str = PROMPT,
    split: Literal["test", "validation"] = "test",
    train: int = 8000,
    seed: int = 0,
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Makes the problems; a completion is right if the last number in it is the answer.

    Raises:
      ValueError: a path is given, or no problems are asked for.
    """
    if path is not None:
        raise ValueError(f"task {NAME!r} reads no files, and the path is {path}. {NO_FILES}")
    one_of("split", split, ("test", "validation"))
    if train < 1:
        raise ValueError(f"train is {train}; give at least 1")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; give at least 1 training example.")
    examples: dict[str, list[Example]] = {}
    taken: set[str] = set()
    for name in STREAMS:
        fresh = (row for row in problems(seed, name) if row[0] not in taken)
        rows = [*islice(fresh, min(train, limit or train) if name == "train" else HELDOUT)]
        taken |= {question for question, _, _ in rows}
        examples[name] = [
            Example(
                fill(prompt, question),
                {ANSWER: str(answer), SOLUTION: solution},
                f"{NAME}, seed {seed}, {name}:{number}",
            )
            for number, (question, solution, answer) in enumerate(rows, start=1)
        ]
    judge, heldout = MathReward(last_number), examples[split]
    return WORD_PROBLEMS.task(
        examples["train"], judge, rewards, heldout=heldout, solutions=SOLUTION
    )


NO_FILES = "The problems are made from a seed: leave the path out."
WORD_PROBLEMS = TaskReader(
    NAME,
    read_word_problems,
    NO_FILES,
    EvaluationProtocol("problems of the same seed", samples=4, temperature=1.0, max_tokens=40),
)
