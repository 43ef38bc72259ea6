"""Chains: what the right way is, what the teacher believes, and how often it is right."""

from collections import Counter

import numpy as np

from ogrpo.setup.find_task import CHAIN_LENGTHS
from ogrpo.tasks import chains
from ogrpo.tasks.chains import FACTS, HARD, MEASURES, VERBS
from ogrpo.tasks.problems import final_answer

PROBLEMS = chains.generate(600, 3)


def words_of(problem):
    return [word for step in problem.steps for word in step]


def test_the_answer_follows_from_the_words():
    for problem in PROBLEMS:
        value = problem.start
        for verb, measure in problem.steps:
            value += int(VERBS[verb].truth + MEASURES[measure].truth)
            assert 1 <= value <= 12
        assert final_answer(problem) == str(value)
        assert len(problem.steps) == chains.STEPS
        assert len({step.measure for step in problem.steps}) == len(problem.steps)


def test_a_problem_holds_hard_facts_of_its_kind_alone():
    shares = Counter(problem.kind for problem in PROBLEMS)
    for kind, share in chains.SHARES.items():
        assert abs(shares[kind] / len(PROBLEMS) - share) < 4 * (share * (1 - share) / 600) ** 0.5
    for problem in PROBLEMS:
        hard = [word for word in words_of(problem) if FACTS[word].kind != "plain"]
        assert set(hard) <= set(HARD[problem.kind])
        least, most = {"plain": (0, 0), "misbelieved": (1, 2), "rare": (1, 1)}[problem.kind]
        assert least <= len(hard) <= most


def test_the_most_likely_answer_is_wrong_where_a_fact_is_misbelieved():
    for word, fact in FACTS.items():
        assert (fact.kind == "plain") == (fact.truth == fact.belief)
        assert fact.kind == "plain" or fact.right < 0.5, word
        assert 0.05 <= fact.right <= 0.2 or fact.kind != "rare"
    share = np.mean([fact.kind != "plain" for fact in FACTS.values()])
    assert 0.2 <= share <= 0.35


def test_the_teacher_is_right_as_often_as_its_beliefs_say():
    shown = [chains.demonstrate(PROBLEMS, seed) for seed in range(8)]
    for kind in chains.SHARES:
        ours = [n for n, problem in enumerate(PROBLEMS) if problem.kind == kind]
        pairs = [(answers[n], PROBLEMS[n]) for answers in shown for n in ours]
        right = [final_answer(answer) == final_answer(problem) for answer, problem in pairs]
        believed = [np.prod([FACTS[word].right for word in words_of(PROBLEMS[n])]) for n in ours]
        expected = np.array(believed) * (1 - chains.SLIP) ** chains.STEPS
        error = (np.mean(expected) * (1 - np.mean(expected)) / len(right)) ** 0.5
        # Two errors that cancel, and amounts that are cut to 0, make up for a little.
        assert -4 * error < np.mean(right) - np.mean(expected) < 4 * error + 0.02, kind


def test_every_word_has_a_token_and_lengths_are_as_promised():
    vocabulary = chains.vocabulary()
    assert len(set(vocabulary)) == len(vocabulary)
    answers = [*PROBLEMS, *chains.demonstrate(PROBLEMS, 0)]
    assert {len(problem.answer.split()) + 1 for problem in answers} == {CHAIN_LENGTHS.completion}
    assert {len(problem.question.split()) for problem in answers} == {CHAIN_LENGTHS.prompt}
    texts = (text for problem in answers for text in (problem.question, problem.answer))
    assert all(set(text.split()) <= set(vocabulary) for text in texts)


def test_a_seed_gives_the_same_problems_whatever_their_number():
    assert chains.generate(100, 3) == PROBLEMS[:100]
    apart = {problem.question for problem in PROBLEMS[:50]}
    assert chains.generate(50, 3, apart_from=apart) == PROBLEMS[50:100]
