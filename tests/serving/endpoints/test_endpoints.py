import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertline.v1 import encoder_pb2 as pb
from serving.endpoints import ENDPOINTS, answer_tag
from tasks import settings_from_dict
from tasks.classification import ClassificationExample, softmax
from tasks.masked_lm import ClozeExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tests.serving.conftest import SPACE, serve
from tests.serving.models import VOCAB, WORDS, write_model
from tests.serving.reliability import vectors

TEXTS = ["the cat sees the dog .", "river", "who likes the small red bird ?", "unknowable cats"]
sentences = st.lists(st.sampled_from([*WORDS, "zebra", ".", "cats"]), min_size=1, max_size=30).map(" ".join)


def test_vectors_equal_numpy(server, references):
    """Vectors equal numpy's, in the order of the texts, and the reply names the model."""
    reply = server.stub.Embed(pb.EmbedRequest(texts=TEXTS))

    np.testing.assert_allclose(vectors(reply), references["embedder"].predict(TEXTS), rtol=1e-5)
    assert reply.model == pb.ModelRef(name="embedder", version="1", space=SPACE)
    assert list(reply.num_tokens) == [8, 3, 9, 5]


@pytest.mark.parametrize(
    ("options", "prompt", "normalize"),
    [
        ({"normalize": False}, "", False),
        ({"pooling": pb.POOLING_MEAN, "normalize": True}, "", True),
        ({"prompt_name": "query"}, "the old ", False),
        ({"input_type": pb.INPUT_TYPE_QUERY}, "the old ", False),
        ({"prompt_name": "document"}, "", False),
        ({"input_type": pb.INPUT_TYPE_DOCUMENT}, "", False),
        ({"prompt_name": ""}, "", False),
    ],
)
def test_embed_options(server, references, options, prompt, normalize):
    """A request may name the pooling, a prompt or what the texts are, and ask for vectors of length 1."""
    reply = server.stub.Embed(pb.EmbedRequest(texts=TEXTS, **options))

    expected = references["embedder"].predict([prompt + text for text in TEXTS], normalize=normalize)
    np.testing.assert_allclose(vectors(reply), expected, rtol=1e-5)
    assert list(reply.num_tokens) == [number + len(prompt.split()) for number in (8, 3, 9, 5)]


@pytest.mark.parametrize("method", [endpoint.name for endpoint in ENDPOINTS])
def test_no_inputs(server, method):
    """Without inputs the reply is empty, and still names the model."""
    model = pb.ModelRef(name="scorer" if method == "Rerank" else "")  # several can rank

    reply = getattr(server.stub, method)(getattr(pb, f"{method}Request")(model=model))

    assert reply.model.version == "1"
    assert not reply.num_tokens


def test_classify(server, references):
    """Replies have all labels with probabilities, most likely first; an empty text_pair differs from an absent one."""
    examples = [ClassificationExample(TEXTS[0]), ClassificationExample(TEXTS[0], TEXTS[2])]
    inputs = [pb.TextInput(text=TEXTS[0]), pb.TextInput(text=TEXTS[0], text_pair=TEXTS[2])]

    reply = server.stub.Classify(pb.ClassifyRequest(inputs=inputs))

    for result, prediction in zip(reply.results, references["classifier"].predict(examples), strict=True):
        assert [item.label for item in result.labels] == [label for label, _ in prediction.ranked()]
        assert [item.score for item in result.labels] == pytest.approx(
            [score for _, score in prediction.ranked()], rel=1e-5
        )
    assert list(reply.num_tokens) == [8, 16]


def test_answers_equal_numpy_over_all_windows(server, references):
    """Contexts longer than a window are answered with the spans that numpy finds over all windows."""
    contexts = ["the cat sees the old dog near the river . " * 3, "a bird", "trees"]
    examples = [SpanExample("who sees the dog ?", context) for context in contexts]
    inputs = [pb.AnswerInput(question=item.question, contexts=[item.context]) for item in examples]

    reply = server.stub.Answer(pb.AnswerRequest(inputs=inputs, top_k=4))

    predictions = references["reader"].predict(examples)
    for example, result, prediction in zip(examples, reply.results, predictions, strict=True):
        assert [(span.start, span.end, span.text) for span in result.spans] == [
            (span.start, span.end, span.text) for span in prediction.spans[:4]
        ]
        assert [span.score for span in result.spans] == pytest.approx(
            [span.score for span in prediction.spans[:4]], rel=1e-5
        )
        assert all(example.context[span.start : span.end] == span.text for span in result.spans)
        assert result.has_answer == prediction.has_answer
        assert result.no_answer_score == pytest.approx(prediction.no_answer_score, rel=1e-5)
    windows = references["reader"].task.encode(examples)

    assert list(reply.num_windows) == list(map(len, windows))
    assert list(reply.num_tokens) == [sum(map(len, items)) for items in windows]
    assert reply.num_windows[0] > 1


@pytest.mark.parametrize(("top_k", "expected"), [(0, 1), (1, 1), (3, 3), (1000, 5)])
def test_answer_top_k(server, top_k, expected):
    """Replies have top_k spans, one by default, at most the model's n_best_size."""
    item = pb.AnswerInput(question="who", contexts=["the cat sees the old dog near the river"])

    reply = server.stub.Answer(pb.AnswerRequest(inputs=[item], top_k=top_k))

    assert len(reply.results[0].spans) == expected


def test_fill_mask(server, references):
    """Replies have the most likely tokens for each [MASK], and the targets in the order of the request."""
    texts = ["the [MASK] sees", "[MASK] likes [MASK] ."]

    reply = server.stub.FillMask(pb.FillMaskRequest(texts=texts, targets=["dog", "cat"]))

    predictions = references["filler"].predict([ClozeExample(text) for text in texts])
    for result, prediction in zip(reply.results, predictions, strict=True):
        assert len(result.masks) == len(prediction.log_probs)
        for index, mask in enumerate(result.masks):
            expected = prediction.top(index, 5)
            assert [item.token for item in mask.tokens] == [VOCAB[token_id] for token_id, _ in expected]
            assert [item.score for item in mask.tokens] == pytest.approx([score for _, score in expected], rel=1e-5)
            targets = np.exp(prediction.log_probs[index][[VOCAB.index("dog"), VOCAB.index("cat")]])
            assert [item.token for item in mask.targets] == ["dog", "cat"]
            assert [item.score for item in mask.targets] == pytest.approx(list(targets), rel=1e-5)


def test_list_models(server, references):
    """Models are listed with task, sizes, labels, digest and manifest, and described alike by GetModel."""
    models = {info.model.name: info for info in server.stub.ListModels(pb.ListModelsRequest()).models}

    assert {name: info.task for name, info in models.items()} == {
        name: reference.task.name for name, reference in references.items()
    }
    assert (models["embedder"].dim, models["classifier"].dim) == (8, 0)
    assert list(models["classifier"].labels) == ["no", "maybe", "entailment"]
    assert models["reader"].max_seq_length == 16
    assert (models["filler"].precision, models["filler"].engine) == ("fp32", "onnxruntime")
    assert models["filler"].digest in models["filler"].manifest_json
    assert server.stub.GetModel(pb.GetModelRequest(model=pb.ModelRef(name="tagger"))) == models["tagger"]
    assert len(models["tagger"].labels) == 5


@settings(max_examples=10)
@given(requests=st.lists(st.lists(sentences, min_size=1, max_size=12), min_size=1, max_size=12))
def test_concurrent_requests(server, references, requests):
    """Requests that share batches each get their own vectors."""
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(server.stub.Embed, pb.EmbedRequest(texts=texts, truncate=True)) for texts in requests]
        replies = [call.result() for call in calls]

    for texts, reply in zip(requests, replies, strict=True):
        np.testing.assert_allclose(vectors(reply), references["embedder"].predict(texts), rtol=1e-4, atol=1e-5)


def test_answer_out_of_several_contexts(server, references):
    """Spans of all contexts are compared by their lead over the context's null score; each is read as in evaluation."""
    contexts = ["the cat sees the old dog near the river . " * 2, "a bird", "the dog likes red trees"]
    item = pb.AnswerInput(question="who sees the dog ?", contexts=contexts)

    reply = server.stub.Answer(pb.AnswerRequest(inputs=[item], top_k=5))

    reader, result = references["reader"], reply.results[0]
    singles = [reader.predict([SpanExample(item.question, context)])[0] for context in contexts]
    nulls = [single.null_margin + single.spans[0].logit for single in singles]
    null = min(nulls)
    logits = sorted(
        (span.logit - nulls[number] + null, number) for number, single in enumerate(singles) for span in single.spans
    )[::-1]
    firsts = {number: logit for logit, number in reversed(logits)}  # the best of each context is among the five
    others = [item for item in logits if item[0] != firsts[item[1]]]
    logits = sorted([*((logit, number) for number, logit in firsts.items()), *others[:2]])[::-1]

    assert [span.context for span in result.spans] == [number for _, number in logits[:5]]
    assert all(contexts[span.context][span.start : span.end] == span.text for span in result.spans)
    assert result.has_answer == (null - logits[0][0] <= 0)
    expected = softmax(np.array([logit for logit, _ in logits[:5]] + [null]))
    assert [span.score for span in result.spans] == pytest.approx(list(expected[:5]), rel=1e-4)
    assert result.no_answer_score == pytest.approx(float(expected[5]), rel=1e-4)


def test_regress(server, references):
    """Numbers equal those of evaluation, for texts and pairs."""
    inputs = [pb.TextInput(text=TEXTS[0]), pb.TextInput(text=TEXTS[0], text_pair=TEXTS[2])]

    reply = server.stub.Regress(pb.RegressRequest(inputs=inputs))

    examples = [RegressionExample(TEXTS[0]), RegressionExample(TEXTS[0], TEXTS[2])]

    assert list(reply.values) == pytest.approx(references["scorer"].predict(examples), rel=1e-5)


def test_choose(server, references):
    """Probabilities have the order of the choices, for any number of choices."""
    examples = [
        MultipleChoiceExample(("cat", "the dog", "a bird"), question="who sees"),
        MultipleChoiceExample(("cat", "dog"), "the cat sleeps", "who sleeps"),
        MultipleChoiceExample(("cat runs", "dog runs")),
    ]
    inputs = [pb.ChooseInput(context=e.context, question=e.question, choices=e.choices) for e in examples]

    reply = server.stub.Choose(pb.ChooseRequest(inputs=inputs))

    for result, prediction in zip(reply.results, references["chooser"].predict(examples), strict=True):
        assert list(result.scores) == pytest.approx(prediction.scores.tolist(), rel=1e-5)
        assert result.choice == prediction.choice


def test_too_many_words_are_refused(server, monkeypatch):
    """The words of all inputs are limited before they are tokenized, since empty words take few bytes."""
    monkeypatch.setattr(answer_tag, "MAX_WORDS", 5)
    inputs = [pb.TagInput(words=["cat", "", "dog"]), pb.TagInput(words=["cat"] * 3)]
    call = server.stub.Tag.future(pb.TagRequest(inputs=inputs), timeout=10)

    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details() == "too many words: `6` (maximum `5`); send several requests"


@pytest.mark.parametrize("words_at_once", [1, 4, 4096])
def test_tag_words(server, references, monkeypatch, words_at_once):
    """Given words are tagged as in evaluation, also in windows, for any number of parts of the reply."""
    monkeypatch.setattr(answer_tag, "SERIALIZED_WORDS", words_at_once)
    example = TaggingExample(tuple(f"{TEXTS[0]} {TEXTS[2]} {TEXTS[0]}".split()))

    request = pb.TagRequest(inputs=[pb.TagInput(words=example.words)], return_words=True)
    reply = server.stub.Tag(request)

    (prediction,), (result,) = references["tagger"].predict([example]), reply.results

    assert [word.tag for word in result.words] == list(prediction.tags)
    assert [word.score for word in result.words] == pytest.approx(prediction.scores.tolist(), rel=1e-5)
    assert [example.text[word.start : word.end] for word in result.words] == list(example.words)
    assert [(item.start, item.end, item.text, item.label) for item in result.entities] == [
        (item.start, item.end, item.text, item.type) for item in prediction.entities
    ]
    assert reply.num_windows[0] > 1


@settings(max_examples=50)
@given(
    parts=st.lists(
        st.sampled_from([*WORDS, "🦉", "👩\u200d👧", "e\u0301", "a\u0327\u0301", "שלום", "\u202e", "中国", "!"])
    )
)
def test_offsets_of_tags(server, parts):
    """Offsets of words and entities are code points of the text, in order, and do not split combining marks."""
    text = " ".join(["the", *parts])

    result = server.stub.Tag(pb.TagRequest(inputs=[pb.TagInput(text=text)], return_words=True)).results[0]

    words = [text[word.start : word.end] for word in result.words]

    assert words == [word for part in text.split() for word in (part if part == "中国" else [part]) if word != "\u202e"]
    assert all(text[item.start : item.end] == item.text for item in result.entities)
    assert all(word.end <= following.start for word, following in pairwise(result.words))


def test_vectors_of_windows_are_averaged(server, references):
    """Vectors of windows are averaged, weighted by their tokens; short texts are not affected."""
    texts = ["cat " * 30 + "dog " * 10, "the cat"]

    reply = server.stub.Embed(pb.EmbedRequest(texts=texts, windows=True))
    overlapping = server.stub.Embed(pb.EmbedRequest(texts=texts, windows=True, window_stride=10))

    first, second, short = references["embedder"].predict(["cat " * 30, "dog " * 10, "the cat"])
    np.testing.assert_allclose(vectors(reply), [0.75 * first + 0.25 * second, short], rtol=1e-4, atol=1e-5)
    expected = references["embedder"].predict(texts, windows=True, window_stride=10)
    np.testing.assert_allclose(vectors(overlapping), expected, rtol=1e-4, atol=1e-5)
    assert list(reply.num_windows) == [2, 1]
    assert list(reply.num_truncated) == [0, 0]


@pytest.mark.parametrize("normalize", [False, True])
def test_dimensions(server, references, normalize):
    """Vectors are cut to their first numbers, and then normalised if the model does."""
    reply = server.stub.Embed(pb.EmbedRequest(texts=TEXTS, dimensions=3, normalize=normalize))

    expected = np.array(references["embedder"].predict(TEXTS))[:, :3]
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(reply), expected / lengths if normalize else expected, rtol=1e-5)
    assert reply.dim == 3


def test_truncated_tokens_are_counted(server):
    """Replies count the removed tokens of each input: texts, pairs, choices and questions."""
    pair = pb.TextInput(text="cat " * 20, text_pair="dog " * 20)
    choice = pb.ChooseInput(question="who", choices=["cat " * 20, "dog"])
    question = pb.AnswerInput(question="who " * 8, contexts=["the cat " * 20, "dog"])
    word = pb.TagInput(words=["cat", "cat." * 9])
    calls = [
        server.stub.Embed(pb.EmbedRequest(texts=["cat", "cat " * 40], truncate=True)),
        server.stub.Classify(pb.ClassifyRequest(inputs=[pair], truncate=True)),
        server.stub.Choose(pb.ChooseRequest(inputs=[choice], truncate=True)),
        server.stub.Answer(pb.AnswerRequest(inputs=[question], truncate=True)),
        server.stub.Tag(pb.TagRequest(inputs=[word], truncate=True)),
    ]

    assert [list(reply.num_truncated) for reply in calls] == [[0, 10], [11], [8], [2], [4]]


MULTI_LABEL = {"labels": ["no", "maybe", "yes"], "problem_type": "multi_label_classification"}


@pytest.fixture(scope="module")
def multi_label(tmp_path_factory):
    """Yield a server of a multi-label model, its thresholds, and the logits of a text by numpy."""
    models, thresholds = tmp_path_factory.mktemp("multi"), [0.9, 0.1, 0.5]
    settings = settings_from_dict("classification", {"max_seq_length": 32, "thresholds": thresholds, **MULTI_LABEL})
    reference = write_model(models, "sets", task="classification", seed=1, settings=settings)
    (features,) = reference.task.encode([ClassificationExample(TEXTS[0])])[0]
    with serve(models) as running:
        yield running, thresholds, reference.outputs(features)["logits"]


def test_classify_with_any_number_of_labels(multi_label):
    """Scores are sigmoids, labels that reach their threshold are selected, and the reply states which kind it is."""
    running, thresholds, logits = multi_label

    reply = running.stub.Classify(pb.ClassifyRequest(inputs=[pb.TextInput(text=TEXTS[0])]))

    expected = dict(zip(MULTI_LABEL["labels"], 1 / (1 + np.exp(-logits.astype(np.float64))), strict=True))
    labels = reply.results[0].labels
    assert reply.problem_type == pb.PROBLEM_TYPE_MULTI_LABEL
    assert {item.label: item.score for item in labels} == pytest.approx(expected, rel=1e-5)
    assert [item.label for item in labels] == sorted(expected, key=lambda label: -expected[label])
    limits = dict(zip(MULTI_LABEL["labels"], thresholds, strict=True))
    assert {item.label for item in labels if item.selected} == {
        label for label, score in expected.items() if score >= limits[label]
    }


def test_one_label_is_selected(server):
    """Replies of a single-label model state this, also without inputs, and select the most likely label."""
    reply = server.stub.Classify(pb.ClassifyRequest(inputs=[pb.TextInput(text=text) for text in TEXTS]))

    assert reply.problem_type == pb.PROBLEM_TYPE_SINGLE_LABEL
    assert [[item.selected for item in result.labels] for result in reply.results] == [[True, False, False]] * 4
    assert server.stub.Classify(pb.ClassifyRequest()).problem_type == pb.PROBLEM_TYPE_SINGLE_LABEL


def test_tokenize(server):
    """Offsets of tokens point into the text of their type, and special tokens have none."""
    text, other = "🦉 the cat sees", "cafe\u0301 dog"
    inputs = [pb.TextInput(text=text, text_pair=other), pb.TextInput(text="cat " * 100), pb.TextInput()]

    reply = server.stub.Tokenize(pb.TokenizeRequest(model=pb.ModelRef(name="embedder"), inputs=inputs))

    pair, _, empty = reply.results

    assert list(reply.num_tokens) == [9, 102, 2]
    assert list(pair.tokens) == ["[CLS]", "[UNK]", "the", "cat", "sees", "[SEP]", "[UNK]", "dog", "[SEP]"]
    assert [VOCAB[token_id] for token_id in pair.ids] == list(pair.tokens)
    assert [index for index, special in enumerate(pair.special) if special] == [0, 5, 8]
    texts = [
        (text, other)[kind][start:end] for kind, start, end in zip(pair.type_ids, pair.starts, pair.ends, strict=True)
    ]
    assert texts == ["", "🦉", "the", "cat", "sees", "", "cafe", "dog", ""]
    assert list(empty.tokens) == ["[CLS]", "[SEP]"]


def test_tokenize_in_time(server, monkeypatch):
    """Tokenize stops when the caller has left."""
    seen = []

    def slowly(tokenizer, item):
        seen.append(item)
        time.sleep(0.05)
        return [b""], 0

    monkeypatch.setattr("serving.endpoints.tokenize.tokenize", slowly)
    inputs = [pb.TextInput(text="cat " * 100)] * 1000
    request = pb.TokenizeRequest(model=pb.ModelRef(name="embedder"), inputs=inputs)
    with pytest.raises(grpc.RpcError) as caught:
        server.stub.Tokenize(request, timeout=0.3)
    time.sleep(0.2)
    count = len(seen)
    time.sleep(0.2)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(seen) == count < len(inputs)
