"""Registry of tasks, and their settings as plain dictionaries."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import TASKS, settings_from_dict, settings_to_dict
from tasks.registry import LabelledTask, TaskName

LENGTHS = st.integers(8, 512)
LABELS = st.lists(st.text().filter(str.strip), min_size=2, max_size=5, unique=True)
POOLING = st.sampled_from(["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
VALUES = {
    "embedding": st.fixed_dictionaries(
        {},
        optional={
            "max_seq_length": LENGTHS,
            "pooling": POOLING | st.lists(POOLING, min_size=2, max_size=6),
            "normalize": st.booleans(),
            "layers": st.lists(st.sampled_from(["normalize", "dense tanh", "dense identity"]), min_size=1),
            "prompts": st.dictionaries(st.text(), st.text(), min_size=1),
            "similarity_fn_name": st.sampled_from(["cosine", "dot", "euclidean", "manhattan"]),
        },
    ),
    "classification": st.fixed_dictionaries(
        {"labels": LABELS},
        optional={"max_seq_length": LENGTHS, "problem_type": st.just("multi_label_classification")},
    ),
    "spans": st.fixed_dictionaries(
        {},
        optional={
            "max_seq_length": st.integers(68, 512),
            "doc_stride": st.integers(1, 300),
            "n_best_size": st.integers(1, 50),
            "unanswerable": st.booleans(),
            "null_threshold": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        },
    ),
    "masked-lm": st.fixed_dictionaries({}, optional={"max_seq_length": LENGTHS}),
    "token-embedding": st.fixed_dictionaries(
        {},
        optional={
            "query_length": st.just(0) | st.integers(8, 512),
            "layers": st.just(["dense identity"]),
            "query_prefix": st.text(),
            "skiplist_words": st.lists(st.text()),
            "do_query_expansion": st.booleans(),
        },
    ),
    "sparse-embedding": st.fixed_dictionaries(
        {}, optional={"pooling": st.just("sum"), "activation": st.just("log1p_relu"), "top_k": st.integers(1, 5000)}
    ),
    "regression": st.fixed_dictionaries(
        {}, optional={"max_seq_length": LENGTHS, "activation": st.just("sigmoid"), "label_mean": st.floats(-9, 9)}
    ),
    "multiple-choice": st.fixed_dictionaries({}, optional={"max_seq_length": LENGTHS}),
    "tagging": st.fixed_dictionaries({"labels": LABELS}),
}


def test_every_task_is_tested():
    """Each task of the registry has a strategy above, and a name in the types of recipes and flags."""
    names = {name for part in get_args(TaskName) for name in (get_args(part) or (part,))}

    assert VALUES.keys() == names == TASKS.keys() > {*get_args(LabelledTask)}
    assert all(task.name == name for name, task in TASKS.items())


@given(case=st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])))
def test_round_trip(case):
    """Settings are equal after a round trip through JSON, with the same types."""
    name, values = case
    settings = settings_from_dict(name, values)

    read = settings_from_dict(name, json.loads(json.dumps(settings_to_dict(settings))))

    assert read == settings
    assert settings_to_dict(read).items() >= values.items()
    assert [type(value) for value in vars(read).values()] == [type(value) for value in vars(settings).values()]
    hash(settings)


WRONG = [
    ("sentiment", {}, r"unknown task: `sentiment` \(one of: embedding, classification, spans, masked-lm, regr"),
    ("embedding", [], r"settings of task `embedding` must be an object: `\[\]`"),
    ("embedding", {"poling": "cls"}, r"unknown key `settings.poling` \(known: max_seq_length, prompts, "),
    ("embedding", {"pooling": "median"}, "`settings.pooling` must be 'cls', 'mean', .* or 'last"),
    ("embedding", {"default_prompt_name": "passage"}, r"unknown prompt: `passage` \(prompts of this model: none\)"),
    ("spans", {"max_seq_length": 64, "max_query_length": 61}, "max_query_length `61` leaves no room"),
    ("tagging", {"labels": list(map(str, range(3000))), "strict": True}, "strict tagging can have at most 2048 labels"),
    ("tagging", {"labels": ["O"]}, "tagging needs at least two labels, each once"),
    ("classification", {"labels": list(map(str, range(70_000)))}, "at most 65536 labels, not `70000`"),
    ("classification", {"labels": ["a", "b" * 2000]}, "must have at most 1024 characters: `bbb"),
]


@pytest.mark.parametrize(("name", "values", "message"), WRONG)
def test_wrong_settings(name, values, message):
    """Errors name the wrong task or key in one line."""
    with pytest.raises(ValueError, match=message) as caught:
        settings_from_dict(name, values)

    assert "\n" not in str(caught.value)
