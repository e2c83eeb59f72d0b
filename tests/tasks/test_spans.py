"""Windows of contexts equal those of run_squad.py; spans of logits equal an exhaustive search and transformers."""

import json
from dataclasses import replace
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from transformers.data.metrics.squad_metrics import compute_predictions_logits

from tasks import InvalidExamplesError
from tasks.metrics import squad_example_scores
from tasks.spans import Span, SpanExample, SpanPrediction, Spans, SpanSettings, best_null_threshold, best_temperatures

QUESTION = "w190 w191"


def random_outputs(windows, seed):
    """Return float32 logits for which no two spans have the same sum."""
    total = sum(map(len, windows))
    starts, ends = (np.random.default_rng([seed, part]).permutation(total) - total // 2 for part in (0, 1))
    starts, ends = (starts * total / 64).astype(np.float32), (ends / 64).astype(np.float32)
    cuts = np.cumsum([len(window) for window in windows])[:-1]
    pairs = zip(np.split(starts, cuts), np.split(ends, cuts), strict=True)
    return [{"start_logits": start, "end_logits": end} for start, end in pairs]


def top(logits, allowed, count):
    positions = [position for position in range(len(logits)) if allowed[position]]
    return sorted(positions, key=lambda position: -logits[position])[:count]


def brute_force(task, windows, outputs):
    """Return each pair of the best starts and ends of each window: {(start, end): logit}."""
    found = {}
    for window, output in zip(windows, outputs, strict=True):
        for start in top(output["start_logits"], window.has_max_context, task.settings.n_best_size):
            for end in top(output["end_logits"], window.in_context, task.settings.n_best_size):
                if start <= end < start + task.settings.max_answer_length:
                    span = int(window.offsets[start][0]), int(window.offsets[end][1])
                    logit = float(output["start_logits"][start] + output["end_logits"][end])
                    found[span] = max(logit, found.get(span, logit))
    return found


CASES = {
    "num_words": st.integers(1, 70),
    "seed": st.integers(0, 2**32 - 1),
    "values": st.fixed_dictionaries(
        {
            "max_seq_length": st.integers(12, 40),
            "max_query_length": st.just(2),
            "doc_stride": st.integers(1, 20),
            "max_answer_length": st.integers(1, 12),
            "n_best_size": st.integers(1, 40),
            "unanswerable": st.booleans(),
            "null_threshold": st.sampled_from([-2.0, 0.0, 3.0]),
        }
    ),
}


def make_case(tokenizer, num_words, seed, values):
    task = Spans(tokenizer, SpanSettings(**values))
    example = SpanExample(QUESTION, " ".join(f"w{index}" for index in range(num_words)))
    windows = task.encode([example])[0]
    return task, example, windows, random_outputs(windows, seed)


@settings(max_examples=75)
@given(**CASES)
def test_decode_equals_exhaustive_search(word_tokenizer, num_words, seed, values):
    """Spans, order, scores, null margin and answerability equal those of an exhaustive search."""
    task, example, windows, outputs = make_case(word_tokenizer, num_words, seed, values)
    found = brute_force(task, windows, outputs)
    ranked = sorted(found, key=lambda span: -found[span])[: task.settings.n_best_size]
    null_score = min(float(output["start_logits"][0] + output["end_logits"][0]) for output in outputs)

    prediction = task.decode(example, windows, outputs)

    assert [(span.start, span.end) for span in prediction.spans] == ranked
    assert [span.logit for span in prediction.spans] == [found[span] for span in ranked]
    assert [span.text for span in prediction.spans] == [example.context[start:end] for start, end in ranked]
    null_logits = [null_score - task.settings.null_threshold] * task.settings.unanswerable
    competing = [found[span] for span in ranked] + null_logits
    scores = [span.score for span in prediction.spans] + [prediction.no_answer_score] * task.settings.unanswerable
    np.testing.assert_allclose(scores, softmax(competing) if competing else [], rtol=1e-5, atol=1e-9)
    assert prediction.null_margin == (null_score - found[ranked[0]] if ranked else np.inf)
    lost = task.settings.unanswerable and prediction.null_margin > task.settings.null_threshold
    assert prediction.has_answer == (bool(ranked) and not lost)
    assert prediction.text == (prediction.spans[0].text if prediction.has_answer else "")


def predict_with_transformers(task, example, windows, outputs):
    """Return the best text by transformers' port of the reference code."""
    words = example.context.split()
    word_at = {
        example.context.index(word + " ") if index + 1 < len(words) else len(example.context) - len(word): index
        for index, word in enumerate(words)
    }
    features, results = [], []
    for number, (window, output) in enumerate(zip(windows, outputs, strict=True)):
        inside = np.flatnonzero(window.in_context).tolist()
        features.append(
            SimpleNamespace(
                example_index=0,
                unique_id=number,
                tokens=[task.tokenizer.token(int(token_id)) for token_id in window.input_ids],
                token_to_orig_map={position: word_at[int(window.offsets[position, 0])] for position in inside},
                token_is_max_context={position: bool(window.has_max_context[position]) for position in inside},
            )
        )
        logits = {name: values.astype(float).tolist() for name, values in output.items()}
        results.append(SimpleNamespace(unique_id=number, **logits))
    predictions = compute_predictions_logits(
        [SimpleNamespace(qas_id="q", doc_tokens=words)],
        features,
        results,
        n_best_size=task.settings.n_best_size,
        max_answer_length=task.settings.max_answer_length,
        do_lower_case=True,
        output_prediction_file=None,
        output_nbest_file=None,
        output_null_log_odds_file=None,
        verbose_logging=False,
        version_2_with_negative=task.settings.unanswerable,
        null_score_diff_threshold=task.settings.null_threshold,
        tokenizer=SimpleNamespace(convert_tokens_to_string=" ".join),
    )
    return predictions["q"]


@settings(max_examples=40)
@given(**CASES)
def test_answer_equals_transformers(word_tokenizer, num_words, seed, values):
    """The answer equals transformers', with n_best_size large enough for all positions."""
    values = values | {"n_best_size": values["max_seq_length"]}
    task, example, windows, outputs = make_case(word_tokenizer, num_words, seed, values)

    prediction = task.decode(example, windows, outputs)

    assert prediction.text == predict_with_transformers(task, example, windows, outputs)


@settings(max_examples=50)
@given(num_words=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), n_best_size=st.integers(1, 60))
def test_equal_logits_are_ranked_the_same_every_time(word_tokenizer, num_words, seed, n_best_size):
    """Spans with equal logits are ranked by position, and the best ones come first."""
    values = {"max_seq_length": 16, "max_query_length": 2, "doc_stride": 3, "n_best_size": n_best_size}
    task, example, windows, outputs = make_case(word_tokenizer, num_words, seed, values)
    outputs = [{name: np.sign(array) for name, array in output.items()} for output in outputs]
    found = brute_force(task, windows, outputs)

    spans = task.decode(example, windows, outputs).spans

    assert [span.logit for span in spans] == sorted(found.values(), reverse=True)[:n_best_size]
    assert list(spans) == sorted(spans, key=lambda span: (-span.logit, span.start, span.end))
    assert task.decode(example, windows, outputs).spans == spans


@settings(max_examples=50)
@hypothesis.example(context="A각각AAAA", seed=178)  # three tokens a character
@given(
    context=st.text(
        st.sampled_from("aéÉe\u0301\u0308 👍🏽🙂中文각ハבשם.!-\u200d\n\u200bﬁ[MASK]"), min_size=1, max_size=50
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_answers_are_slices_of_the_context(tokenizer, context, seed):
    """Each answer is `context[start:end]`, for any script, and occurs once."""
    assume(len(tokenizer.tokenize([context])[0]))
    settings = SpanSettings(max_seq_length=16, max_query_length=4, doc_stride=3)
    task, example = Spans(tokenizer, settings), SpanExample("who?", context)
    windows = task.encode([example])[0]

    outputs = random_outputs(windows, seed)
    found = brute_force(task, windows, outputs)

    spans = task.decode(example, windows, outputs).spans

    assert spans[0].logit == max(found.values())
    assert all(span.logit == found[span.start, span.end] for span in spans)
    assert all(span.text == context[span.start : span.end] for span in spans)
    assert all(0 <= span.start < span.end <= len(context) for span in spans)
    assert len({(span.start, span.end) for span in spans}) == len(spans)


def test_an_accent_on_the_last_letter_belongs_to_the_answer(tokenizer):
    """The answer includes combining marks of its last letter, also if the tokenizer drops them."""
    task = Spans(tokenizer, SpanSettings(max_seq_length=16, max_query_length=4))
    example = SpanExample("how", "un cafe\u0301\u0308, un", ("cafe\u0301\u0308",))
    (window,) = task.encode([example])[0]
    logits = {"start_logits": 9.0 * (window.offsets[:, 0] == 3), "end_logits": 9.0 * (window.offsets[:, 0] == 6)}

    prediction = task.decode(example, [window], [logits])

    assert prediction.spans[0].end == 9
    assert prediction.text == "cafe\u0301\u0308"
    assert task.score([example], [prediction])["exact_match"] == 1


def test_spans_of_nan_logits(word_tokenizer):
    """Spans start before they end, also with NaN logits."""
    task, example, windows, outputs = make_case(word_tokenizer, 3, 0, {"max_seq_length": 16, "max_query_length": 4})
    outputs = [{name: array * np.nan for name, array in output.items()} for output in outputs]

    assert all(span.start < span.end for span in task.decode(example, windows, outputs).spans)


def test_several_contexts(word_tokenizer):
    """The answer has the largest lead over its context's null score, and the null score is the lowest one of all."""
    settings = SpanSettings(max_seq_length=12, max_query_length=4, doc_stride=7, unanswerable=True)
    task = Spans(word_tokenizer, settings)
    texts = ["w0 w1", " ".join(f"w{index}" for index in range(14))]
    example = SpanExample(QUESTION, texts[0], more_contexts=(texts[1],))
    windows = task.encode([example])[0]
    alone = [window for text in texts for window in task.encode([SpanExample(QUESTION, text)])[0]]

    assert [window.input_ids.tolist() for window in windows] == [window.input_ids.tolist() for window in alone]
    assert [window.context for window in windows] == [0, 1, 1]
    outputs = [{name: np.zeros(len(window), np.float32) for name in task.output_names} for window in windows]
    for output, null_logit in zip(outputs, (9, 40, 1), strict=True):
        output["start_logits"][0] = null_logit
    outputs[2]["start_logits"][5] = outputs[2]["end_logits"][6] = 3

    prediction = task.decode(example, windows, outputs)

    best = prediction.spans[0]
    assert (best.context, best.text, best.logit) == (1, texts[1][best.start : best.end], 6.0)
    assert prediction.null_margin == 1 - 6
    with pytest.raises(InvalidExamplesError, match=r"contexts\[1\]: empty text"):
        task.encode([SpanExample(QUESTION, "w0", more_contexts=(" ",))])


@pytest.mark.parametrize(
    ("flags", "text", "leads"),
    [
        ({}, "w1", {"w0": 5, "w1": 6}),
        ({"null_is_trained": True}, "w0", {"w0": 5, "w1": 2}),
        ({"unanswerable": True}, "w0", {"w0": 5, "w1": 2}),
    ],
    ids=["logits", "leads", "no answer"],
)
def test_contexts_are_compared_by_their_lead(word_tokenizer, flags, text, leads):
    """A context that rather has no answer loses, if the null score was trained."""
    task = Spans(word_tokenizer, SpanSettings(max_seq_length=12, max_query_length=4, doc_stride=4, **flags))
    example = SpanExample(QUESTION, "w0", more_contexts=("w1",))
    windows = task.encode([example])[0]
    outputs = [{name: np.zeros(len(window), np.float32) for name in task.output_names} for window in windows]
    for window, output, logit, null in zip(windows, outputs, (5, 6), (1, 5), strict=True):
        output["start_logits"][np.flatnonzero(window.in_context)[0]] = logit
        output["start_logits"][0] = null

    prediction = task.decode(example, windows, outputs)

    assert prediction.text == text
    assert {span.text: span.logit for span in prediction.spans} == leads
    expected = softmax(np.array([span.logit for span in prediction.spans] + [1.0] * task.settings.unanswerable))
    assert [span.score for span in prediction.spans] == pytest.approx(list(expected[:2]))


@pytest.mark.parametrize(("n_best_size", "contexts"), [(1, [1]), (2, [1, 0]), (3, [1, 1, 0]), (4, [1, 1, 1, 0])])
def test_each_context_has_a_span(word_tokenizer, n_best_size, contexts):
    """The best span of each context is among the n-best, as far as there is room, so that contexts can be ranked."""
    settings = SpanSettings(max_seq_length=16, max_query_length=4, doc_stride=8, n_best_size=n_best_size)
    task = Spans(word_tokenizer, settings)
    example = SpanExample(QUESTION, "w0", more_contexts=("w1 w2 w3",))
    windows = task.encode([example])[0]
    outputs = [{name: np.zeros(len(window), np.float32) for name in task.output_names} for window in windows]
    outputs[1]["start_logits"][windows[1].in_context] = 5

    assert [span.context for span in task.decode(example, windows, outputs).spans] == contexts


def official_best_threshold(predictions, scores, margins, has_answer):
    """Return the best sum of F1 that `find_best_thresh` of the official SQuAD v2.0 script finds."""
    current = best = sum(not known for known in has_answer)
    for index in sorted(range(len(margins)), key=lambda index: margins[index]):
        current += scores[index] if has_answer[index] else -bool(predictions[index])
        best = max(best, current)
    return best


ANSWERS = st.tuples(st.sampled_from(["w0", "w1 w2", ""]), st.sampled_from([(), ("w0",), ("w1 w3", "w2")]))


@given(
    pairs=st.lists(ANSWERS, min_size=1, max_size=12),
    margins=st.lists(st.floats(-20, 20, width=16), min_size=12, max_size=12, unique=True),
)
def test_the_best_threshold_reaches_the_official_best_f1(word_tokenizer, pairs, margins):
    """Decisions with the best threshold have the F1 of the official search."""
    examples = [SpanExample(QUESTION, "w0 w1 w2", answers) for _, answers in pairs]
    predictions = [
        SpanPrediction((Span(0, 1, text, 1.0, 0.0),) if text else (), True, 0.5, margin if text else np.inf)
        for (text, _), margin in zip(pairs, margins, strict=False)
    ]
    texts, answers = [text for text, _ in pairs], [answers for _, answers in pairs]
    _, f1 = squad_example_scores(texts, answers, characters=False)
    known = [bool(item) for item in answers]
    expected = official_best_threshold(texts, f1, [p.null_margin for p in predictions], known)

    threshold = best_null_threshold(examples, predictions)
    known_settings = SpanSettings(max_seq_length=16, max_query_length=4, unanswerable=True, null_threshold=threshold)
    task = Spans(word_tokenizer, known_settings)
    decided = [task.decide(prediction) for prediction in predictions]

    assert task.score(examples, decided)["f1"] == pytest.approx(expected / len(pairs))


@pytest.mark.parametrize("threshold", [-50.0, -2.0, 1.5, 1.6, 50.0])
def test_written_margins_decide_as_the_task(word_tokenizer, threshold):
    """A written prediction has its null margin, so that any threshold can be tried without the model."""
    settings = SpanSettings(max_seq_length=16, max_query_length=4, unanswerable=True, null_threshold=threshold)
    task, example = Spans(word_tokenizer, settings), SpanExample(QUESTION, "w0", id="q")
    predictions = [*(predicted("w0", margin) for margin in (-9.0, 1.5, 2.0)), SpanPrediction((), False, 1.0, np.inf)]

    for prediction in predictions:
        row = json.loads(json.dumps(task.to_dict(example, task.decide(prediction)), allow_nan=False))
        has_answer = bool(row["spans"]) and not row["null_margin"] > threshold
        assert row["answer"] == (row["spans"][0]["text"] if has_answer else "")
    assert "null_margin" not in task.with_settings(unanswerable=False).to_dict(example, predictions[0])


def test_the_best_threshold_of_equal_margins(word_tokenizer):
    """Predictions with equal margins get the same decision: here two right answers outweigh a wrong one."""
    examples = [SpanExample(QUESTION, "w0", answers) for answers in [(), ("w0",), ("w0",)]]
    predictions = [predicted("w0", 3.0)] * 3

    assert best_null_threshold(examples, predictions) == 4.0
    assert best_null_threshold(examples[:1], predictions[:1]) == 2.0


def predicted(text, margin, *, has_answer=True):
    """Return a prediction with one span and this null margin."""
    return SpanPrediction((Span(0, len(text), text, 1.0, 0.0),), has_answer, 0.5, margin)


@pytest.mark.parametrize("threshold", [-1.5, 0.0])
@pytest.mark.parametrize(("temperature", "null_temperature"), [(0.5, 4.0), (2.0, 1.0)])
def test_scores_are_probabilities_at_the_best_temperatures(temperature, null_temperature, threshold):
    """Temperatures are found from answers that exist, and spans that are right, as often as they say."""
    rng = np.random.default_rng(0)
    examples, predictions = [], []
    for margin, gap in zip(rng.uniform(-12, 12, size=8000), rng.exponential(2, size=8000), strict=True):
        is_answerable = rng.random() < 1 / (1 + np.exp((margin - threshold) / null_temperature))
        is_first = rng.random() < 1 / (1 + np.exp(-gap / temperature))
        spans = tuple(Span(n, n + 2, f"w{n}", 0.5, -gap * n) for n in (0, 1))
        examples.append(SpanExample(QUESTION, "w0 w1", ("w0" if is_first else "w1",) if is_answerable else ()))
        predictions.append(SpanPrediction(spans, True, 0.5, margin))

    found = best_temperatures(examples, predictions, threshold)

    assert found == pytest.approx((temperature, null_temperature), rel=0.2)


def random_predictions(tokenizer, count=40, **settings):
    """Return predictions of random outputs."""
    task = Spans(tokenizer, SpanSettings(max_seq_length=16, max_query_length=4, unanswerable=True, **settings))
    example, rng = SpanExample(QUESTION, "w0 w1 w2"), np.random.default_rng(1)
    features = task.encode([example])[0]
    shape = len(features[0].input_ids)
    outputs = [{name: rng.normal(size=shape).astype(np.float32) for name in task.output_names} for _ in range(count)]
    return [task.decode(example, features, [each]) for each in outputs]


@pytest.mark.parametrize("threshold", [-3.0, 0.0, 3.0])
def test_the_choice_has_the_higher_score(word_tokenizer, threshold):
    """Whatever the null threshold is: there is an answer if "no answer" is not the more probable."""
    joint = random_predictions(word_tokenizer, null_threshold=threshold)
    apart = random_predictions(word_tokenizer, null_threshold=threshold, null_temperature=3.0)

    assert all(found.has_answer == (found.spans[0].score >= found.no_answer_score) for found in joint)
    assert all(found.has_answer == (found.no_answer_score <= 0.5) for found in apart)


def test_temperatures_change_scores_but_no_decision(word_tokenizer):
    """Higher temperatures bring the scores together, in their order; all scores add up to 1."""
    cold = random_predictions(word_tokenizer, temperature=0.5, null_temperature=0.5)
    hot = random_predictions(word_tokenizer, temperature=2.0, null_temperature=2.0)

    for before, after in zip(cold, hot, strict=True):
        assert [span.text for span in before.spans] == [span.text for span in after.spans]
        assert (before.has_answer, before.null_margin) == (after.has_answer, after.null_margin)
        assert abs(before.no_answer_score - 0.5) > abs(after.no_answer_score - 0.5)
        assert sum(span.score for span in after.spans) + after.no_answer_score == pytest.approx(1)


CITIES = "北京大学", "清华大学", "复旦大学", "南京大学", "浙江大学"
CHINESE = [SpanExample("在哪里？", f"他在{city}学习。", (city,), 2) for city in CITIES]


def test_the_best_threshold_keeps_nearly_right_answers():
    """Nearly right answers in Chinese count by characters, so the threshold keeps them."""
    examples = [*CHINESE, *CHINESE, *(SpanExample("在哪里？", example.context) for example in CHINESE)]
    answered = [predicted(example.answers[0] + "学", -1.0) for example in examples[:10]]

    assert best_null_threshold(examples, answered + [predicted("他在", 1.0)] * 5) == 0.0


def test_scores_are_by_characters_where_contexts_are(word_tokenizer):
    """The language of the context decides between characters and words, also for a number as answer."""
    task = Spans(word_tokenizer, SpanSettings(max_seq_length=16, max_query_length=4))
    example = SpanExample("哪一年？", "他生于1949年。", ("1949",), 3)

    assert task.score([example], [predicted("1949年", 0.0)]) == {
        "exact_match (characters)": 0.0,
        "f1 (characters)": pytest.approx(2 / 3),
    }
    assert task.score([replace(example, context="Born in 1949.")], [predicted("in 1949", 0.0)]) == {
        "exact_match": 0.0,
        "f1": pytest.approx(2 / 3),
    }


def reference_bounds(num_tokens, capacity, doc_stride):
    """Return windows like the reference loop: as many tokens as fit, then a step of the stride."""
    spans, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, capacity)
        spans.append((start, start + length))
        if start + length == num_tokens:
            break
        start += min(length, doc_stride)
    return spans


def reference_owner(spans, position):
    """Return the first span with the highest score: smaller side of the context plus 0.01 x length."""
    best, owner = None, None
    for number, (start, end) in enumerate(spans):
        if start <= position < end:
            score = min(position - start, end - 1 - position) + 0.01 * (end - start)
            if best is None or score > best:
                best, owner = score, number
    return owner


@settings(max_examples=60)
@hypothesis.example(num_tokens=270, num_query=1, max_seq_length=260, doc_stride=128)
@given(
    num_tokens=st.integers(1, 400),
    num_query=st.integers(1, 12),
    max_seq_length=st.integers(16, 300),
    doc_stride=st.integers(5, 150),
)
def test_encoded_windows(word_tokenizer, num_tokens, num_query, max_seq_length, doc_stride):
    """Each window has the question and a part of the context with offsets, and each token has one best window."""
    question = " ".join(f"w{190 + index % 5}" for index in range(num_query))
    words = [f"w{index % 190}" for index in range(num_tokens)]
    context = "  ".join(words)
    task = Spans(word_tokenizer, SpanSettings(max_seq_length=max_seq_length, doc_stride=doc_stride, max_query_length=8))
    query_ids = word_tokenizer.tokenize([question])[0].ids[:8].tolist()
    bounds = reference_bounds(num_tokens, max_seq_length - len(query_ids) - 3, doc_stride)

    windows = task.encode([SpanExample(question, context)])[0]

    owned = []
    for number, ((start, end), window) in enumerate(zip(bounds, windows, strict=True)):
        context_ids = word_tokenizer.tokenize([" ".join(words[start:end])])[0].ids.tolist()
        cls, sep = map(word_tokenizer.token_id, ("[CLS]", "[SEP]"))
        assert window.input_ids.tolist() == [cls, *query_ids, sep, *context_ids, sep]
        assert window.token_type_ids.tolist() == [0] * (len(query_ids) + 2) + [1] * (len(context_ids) + 1)
        assert window.in_context.tolist() == [False] * (len(query_ids) + 2) + [True] * len(context_ids) + [False]
        assert [context[a:b] for a, b in window.offsets[window.in_context]] == words[start:end]
        assert (window.offsets[~window.in_context] == 0).all()
        expected = [reference_owner(bounds, position) == number for position in range(start, end)]
        assert window.has_max_context[window.in_context].tolist() == expected
        assert not window.has_max_context[~window.in_context].any()
        owned += (np.flatnonzero(expected) + start).tolist()
    assert sorted(owned) == list(range(num_tokens))
