import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.job import Job, Origin
from serving.core.queue import MAX_PADDING, Queue, nearest


class Model:
    def __init__(self, max_batch_tokens, run_tokens=0):
        self.max_batch_tokens, self.run_tokens = max_batch_tokens, run_tokens
        self.num_threads = 1


def fill(queue, *models_and_lengths):
    """Queue jobs of one sequence without work, so that they are computed in order of arrival."""
    return [add(queue, model, [length], 0.0) for model, length in models_and_lengths]


def add(queue, model, lengths, seconds_per_token, *, is_bulk=False):
    groups, origin = [[range(length)] for length in lengths], Origin(None, is_bulk)
    job = Job(
        model, groups, lambda group, outputs: None, deadline_s=None, seconds_per_token=seconds_per_token, origin=origin
    )
    queue.add(job)
    return job.entries[0]


def lengths(batch):
    return [len(entry.sequence) for entry in batch]


@given(
    caps=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    run_tokens=st.integers(0, 100),
    waiting=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 100)), max_size=60),
)
def test_batches(caps, run_tokens, waiting):
    """Each batch has one model and stays within token cap and padding limit, and each entry occurs once."""
    models = [Model(cap, run_tokens) for cap in caps]
    queue = Queue()
    entries = fill(queue, *((models[number], length) for number, length in waiting))
    taken = []
    while first := queue.first():
        batch = queue.pop_batch()
        taken += batch
        padded = len(batch) * max(lengths(batch))

        assert batch[0] is first
        assert {entry.model for entry in batch} == {first.model}
        assert len(batch) == 1 or padded <= first.model.max_batch_tokens
        assert padded - sum(lengths(batch)) <= max(MAX_PADDING * padded, run_tokens)
    assert sorted(map(id, taken)) == sorted(map(id, entries))
    assert len(queue) == sum(queue.tokens.values()) == 0


@pytest.mark.parametrize(
    ("cap", "waiting", "expected"),
    [
        (100, [20, 50, 21, 19, 20], [20, 20, 19, 21]),
        (60, [20, 50, 21, 19, 20], [20, 20, 19]),
        (10, [20, 20], [20]),
        (1000, [10, 100, 100, 10], [10, 10]),
    ],
)
def test_batch_of_neighbours(cap, waiting, expected):
    """The first entry is batched with the entries nearest in length, within token cap and padding limit."""
    queue = Queue()
    fill(queue, *((model, length) for model in [Model(cap)] for length in waiting))

    assert lengths(queue.pop_batch()) == expected


@pytest.mark.parametrize(
    ("run_tokens", "expected"), [(0, [10]), (29, [10]), (30, [10, 40]), (59, [10, 40]), (80, [10, 40, 60])]
)
def test_padding_is_cheaper_than_another_run(run_tokens, expected):
    """A batch may have as much padding as another run would cost, in tokens."""
    queue = Queue()
    fill(queue, *((model, length) for model in [Model(1000, run_tokens)] for length in (10, 40, 60)))

    assert lengths(queue.pop_batch()) == expected


@pytest.mark.parametrize(
    ("others", "is_bulk", "run_tokens", "expected"),
    [
        ([10] * 10, False, 0, [10]),
        ([10] * 2, False, 0, [10] * 3),
        ([10] * 2, True, 0, [10]),
        ([10] * 10, False, 45, [10] * 4),
        ([10] * 2, True, 45, [10] * 3),
    ],
    ids=["much larger", "a little larger", "bulk", "free beside much larger", "free beside bulk"],
)
def test_a_query_does_not_wait_for_less_urgent_work_in_its_batch(others, is_bulk, run_tokens, expected):
    """Entries of bulk and of much larger jobs join a batch only as far as they cost no more than another run."""
    queue, model = Queue(), Model(1000, run_tokens)
    query = add(queue, model, [10], 0.001)
    add(queue, model, others, 0.001, is_bulk=is_bulk)
    batch = queue.pop_batch()

    assert batch[0] is query
    assert lengths(batch) == expected


def test_remove():
    """An entry can be removed from any position, once."""
    queue = Queue()
    model = Model(100)
    first, second, third = fill(queue, (model, 5), (model, 6), (model, 5))

    assert queue.remove([second]) == 1
    assert queue.remove([second]) == 0
    assert (queue.sequences[model], queue.tokens[model]) == (2, 10)
    assert len(queue) == 2
    assert queue.pop_batch() == [first, third]


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.integers(0, 50))
def test_values_are_sorted_by_distance(values, target):
    """Values are sorted by distance, and each occurs once."""
    found = list(nearest(values, target))

    assert sorted(found) == values
    assert [abs(value - target) for value in found] == sorted(abs(value - target) for value in values)
