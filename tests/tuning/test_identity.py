"""Equal data and functions have equal identities, and what would change a result changes the identity."""

import functools
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from neural_compressor.tuning.identity import identity

THRESHOLD = 0.5
SEEN = []
COUNT = 0


class Items:
    """A dataset that is known by its items alone."""

    def __init__(self, make, length=500):
        self._make, self._length = make, length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        if index >= self._length:
            raise IndexError(index)
        return self._make(index)


class Batches:
    """Only iterable, anew each time."""

    def __init__(self, make):
        self._make = make

    def __iter__(self):
        return (self._make(index) for index in range(10**9))


class Reader:
    def __init__(self, batches):
        self.batches = batches
        self.place = 1

    def get_next(self):
        self.place += 1
        return self.batches[self.place - 1] if self.place <= len(self.batches) else None

    def rewind(self):
        self.place = 0

    def __iter__(self):
        return self

    __next__ = get_next


class Batch:
    def __init__(self, labels):
        self.labels = labels


class Table:
    """Neither a list nor an array, and gives itself as one."""

    def __init__(self, *labels):
        self._labels = labels

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, column):
        raise KeyError(column)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._labels)


class Loader:
    def __init__(self, dataset, batch_size=4):
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self):
        raise AssertionError("a loader that shuffles gives another order each time: its dataset is read")


def numbers(*values):
    return np.array(values or (1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: numbers(1, 2), lambda: numbers(1, 3)),
        (lambda: numbers(1, 2), lambda: numbers(1, 2).astype(np.float32)),
        (lambda: [(numbers(), 0), (numbers(), 1)], lambda: [(numbers(), 0), (numbers(), 2)]),
        (lambda: {"x": numbers()}, lambda: {"y": numbers()}),
        (lambda: {"a", "b", "c"}, lambda: {"a", "b", "d"}),
        (lambda: list(range(10**5)), lambda: [*range(10**5 - 1), 0]),
        (lambda: Items(lambda i: (i, i % 10)), lambda: Items(lambda i: (i, (i + 1) % 10))),
        (lambda: Items(lambda i: i), lambda: Items(lambda i: i, 501)),
        (lambda: Items(lambda i: Batch([i])), lambda: Items(lambda i: Batch([i + 1]))),
        (lambda: Table(1, 2, 3), lambda: Table(1, 2, 4)),
        (lambda: Table("a", "b"), lambda: Table("a", "c")),
        (lambda: Table("a", 2), lambda: Table("a", 3)),
        (lambda: Batches(numbers), lambda: Batches(lambda i: numbers(i + 1))),
        (lambda: Reader([numbers(1), numbers(2)]), lambda: Reader([numbers(1), numbers(3)])),
        (lambda: Loader(Items(lambda i: i)), lambda: Loader(Items(lambda i: -i))),
        (lambda: Loader(Items(lambda i: i)), lambda: Loader(Items(lambda i: i), 8)),
    ],
    ids=[
        "array",
        "dtype",
        "list",
        "dict",
        "set",
        "labels",
        "dataset",
        "length",
        "objects",
        "table",
        "text",
        "mixed",
        "iterable",
        "reader",
        "loader",
        "batch_size",
    ],
)
def test_data_is_known_by_its_content(make, other):
    assert identity(make()) == identity(make()) != identity(other())


def test_labels_in_an_attribute_of_a_dataset_are_read_to_the_last():
    def dataset(labels):
        data = Items(lambda i: i)
        data.labels = labels
        return data

    labels = np.zeros(500)
    changed = labels.copy()
    changed[3] = 1
    assert identity(dataset(labels)) == identity(dataset(labels.copy())) != identity(dataset(changed))


def test_few_items_of_much_data_are_read():
    read = []
    identity(Items(lambda i: read.append(i) or i, 10**6))
    assert {0, 10**6 - 1} <= set(read)
    assert len(read) < 100


def test_of_a_huge_array_every_nth_element_is_read(monkeypatch):
    monkeypatch.setattr("neural_compressor.tuning.identity._ARRAY", 10)
    array = np.zeros(1000)
    before = identity(array)
    array[1] = 1
    assert identity(array) == before
    array[500] = 1
    assert identity(array) != before


def test_data_that_is_random_is_known_by_its_length():
    def noisy(length=20):
        return Items(lambda i: random.random() + np.random.rand(), length)

    assert identity(noisy()) == identity(noisy()) != identity(noisy(21))


def test_random_generators_are_left_as_they_were():
    torch = pytest.importorskip("torch")
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    identity(Items(lambda i: (random.random(), np.random.rand(), torch.rand(2))))
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_what_can_be_read_only_once_is_not_read():
    batches = iter([1, 2])
    assert identity(batches) == identity(iter([3, 4]))
    assert next(batches) == 1


def test_data_that_cannot_be_read_is_left_to_its_user():
    assert "#" in identity(Items(lambda i: 1 / 0))


def evaluation(labels):
    def evaluate(model):
        return sum(labels) / len(labels)

    return evaluate


def with_default(labels):
    def evaluate(model, labels=labels):
        return sum(labels)

    return evaluate


def doubled(function):
    @functools.wraps(function)
    def twice(model):
        return 2 * function(model)

    return twice


class Judge:
    def __init__(self, labels):
        self.labels = labels
        self.calls = 0
        self.history = []
        self.cache = {}

    def evaluate(self, model):
        self.calls += 1
        self.history.append(model)
        self.cache[model] = self.calls
        return sum(self.labels)

    __call__ = evaluate


@pytest.mark.parametrize(
    "make",
    [
        evaluation,
        with_default,
        lambda labels: doubled(evaluation(labels)),
        lambda labels: functools.partial(max, labels),
        lambda labels: functools.cache(evaluation(labels)),
        Judge,
        lambda labels: Judge(labels).evaluate,
        lambda labels: lambda model: 2 * evaluation(labels)(model),
        lambda labels: evaluation(Loader(Items(labels.__getitem__, 3))),
    ],
    ids=["closure", "default", "decorator", "partial", "cached", "callable", "method", "nested", "loader"],
)
def test_a_function_is_known_by_what_it_reads(make):
    assert identity(make([1, 0, 1])) == identity(make([1, 0, 1])) != identity(make([0, 1, 1]))


def test_what_an_evaluation_counts_and_keeps_is_not_its_identity():
    judge = Judge([1, 2])
    before = identity(judge), identity(judge.evaluate)
    judge("model")
    assert (identity(judge), identity(judge.evaluate)) == before

    counted, seen = 0, []

    def evaluate(model):
        global COUNT  # noqa: PLW0603 - what a user may well do
        nonlocal counted
        counted += 1
        COUNT += 1
        seen.append(model)
        SEEN.append(model)
        return 0.5

    before = identity(evaluate)
    evaluate("model")
    assert identity(evaluate) == before


def test_an_attribute_that_is_set_does_not_hide_a_variable_of_its_name():
    def make(labels):
        def evaluate(model):
            model.labels = labels
            return model.score()

        return evaluate

    assert identity(make([1, 2])) == identity(make([1, 2])) != identity(make([1, 3]))


def test_of_what_is_changed_the_type_still_counts():
    def make(metric):
        def evaluate(model):
            metric.update(model)
            return metric.result()

        return evaluate

    assert identity(make({})) == identity(make({1: 2})) != identity(make(set()))


class Broken:
    shape = property(lambda self: 1 / 0)
    reshape = None

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError

    def __len__(self):
        raise ValueError


def test_what_cannot_be_described_is_known_by_its_type():
    assert identity(Broken()) == identity(Broken()) != identity([Broken()])


def helper(model):
    return model > THRESHOLD


def test_globals_count_also_those_that_called_functions_read(monkeypatch):
    def evaluate(model):
        return helper(model)

    before = identity(evaluate)
    monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", 0.6)
    assert identity(evaluate) != before
    monkeypatch.undo()
    assert identity(evaluate) == before
    monkeypatch.setattr(sys.modules[__name__], "helper", lambda model: model)
    assert identity(evaluate) != before


@pytest.mark.parametrize(
    ("one", "two"), [("1.0", "2.0"), ("x in {1, 2}", "x in {1, 3}"), ("[y for y in x]", "[-y for y in x]")]
)
def test_the_code_counts(one, two):
    def made(body):
        space = {"__name__": "made"}
        exec(compile(f"def evaluate(x):\n    return {body}", "made.py", "exec"), space)
        return space["evaluate"]

    assert identity(made(one)) == identity(made(one)) != identity(made(two))


def test_functions_that_call_each_other_have_an_end():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert identity(even) != identity(odd)


def test_another_process_finds_the_same():
    """Addresses, hash seeds and the order of sets differ from one to the next."""
    code = """
        import numpy as np
        from neural_compressor.tuning.identity import identity
        names = {"a", "b", "c"}
        class Judge:
            def __init__(self):
                self.kept = {"x", "y", "z"}
            def __call__(self, model):
                return len(self.kept) + len(names) + (model in {"p", "q", "r"})
        print(identity(Judge()), identity({"labels": np.arange(5), "names": names}), identity(lambda m: names))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1] != ""


def test_a_module_of_the_user_is_known_by_its_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_scores.py").write_text("def score(model):\n    return 1\n")
    import own_scores

    def evaluate(model):
        return own_scores.score(model)

    before = identity(evaluate)
    (tmp_path / "own_scores.py").write_text("def score(model):\n    return 2\n")
    assert identity(evaluate) != before


class Foreign:
    """An array of a library without ``__array__``, whose elements are arrays of one element, as in MXNet."""

    def __init__(self, values):
        self.values = np.atleast_1d(values)
        self.shape = self.values.shape

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return type(self)(self.values[index])


class Convertible(Foreign):
    """One that can be made a NumPy array."""

    shape = ()

    def reshape(self, shape):
        return type(self)(self.values.reshape(shape))

    def asnumpy(self):
        return self.values


@pytest.mark.parametrize("kind", [Foreign, Convertible])
def test_arrays_of_other_libraries_come_to_an_end(kind, monkeypatch):
    monkeypatch.setattr("neural_compressor.tuning.identity._LOOKS", 2000)

    def batches(shift):
        return [(kind(np.arange(6.0).reshape(2, 3) + shift), kind([1.0, 2.0]))]

    assert identity(batches(0)) == identity(batches(0)) != identity(batches(1))
