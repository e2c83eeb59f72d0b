"""Results that are marked in a text: entities, answers, masked words."""

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import RobertaProcessing

from bertline.v1 import encoder_pb2 as pb
from tasks.bundle.files import sha256
from tasks.bundle.model_directory import MODEL_FILE
from tasks.text.tokenizer_files import TOKENIZER_FILE
from tests.serving.conftest import serve
from tests.serving.http_api.playground.page import ACCENT, FAMILY, FLAG, IN_BROWSER, MAX_ROWS, THUMB
from tests.serving.models import VOCAB, edit_manifest, write_model
from tests.toy_tokenizers import ROBERTA_TOKENS

pytestmark = IN_BROWSER


def write_byte_model(models, likeliest):
    """Write a masked language model with a byte-level vocabulary that always predicts one token."""
    merges = [(likeliest[:end], likeliest[end]) for end in range(1, len(likeliest))]
    pieces = [*dict.fromkeys([*likeliest, "\u00c3", "\u0141", *map("".join, merges)])]
    tokens = [*ROBERTA_TOKENS, *pieces]
    tokens += [f"unused{number}" for number in range(len(VOCAB) - len(tokens))]
    backend = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges, unk_token="<unk>"))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.add_special_tokens([*ROBERTA_TOKENS[:-1], AddedToken("<mask>", lstrip=True, special=True)])
    backend.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))

    def edit(weights):
        weights.embedding[:], weights.types[:], weights.head[:] = 1, 0, 0
        weights.head[:, tokens.index(likeliest)] = 1

    write_model(models, "bytes", task="masked-lm", edit=edit)
    directory = models / "bytes" / "1"
    backend.save(str(directory / TOKENIZER_FILE))
    edit_manifest(directory, files={name: sha256(directory / name) for name in (TOKENIZER_FILE, MODEL_FILE)})


@pytest.mark.parametrize(
    "text",
    [
        f"{FAMILY} Angela Merkel met Emmanuel Macron in Paris {FLAG}, not Jose{ACCENT} Garci{ACCENT}a {THUMB}.",
        f"\U00020000{THUMB * 50} Emmanuel Macron\nwent to\tParis. {FAMILY}{FLAG} Zoe{ACCENT} lives in Berlin",
        f"قال {FAMILY} Emmanuel Macron في Paris، ثم 安格拉 Angela Merkel 在 Berlin {THUMB}。",
    ],
)
def test_entities_are_marked_where_they_are(visit, shipped, text):
    """Offsets in code points are right behind emoji, combining marks and in right-to-left and Chinese text."""
    page = visit(shipped, "#model=tag")
    page.wait()
    page.run(text=text)
    reply = shipped.stub.Tag(pb.TagRequest(model=pb.ModelRef(name="tag"), inputs=[pb.TagInput(text=text)]))
    expected = [(item.text, item.label) for item in reply.results[0].entities]

    assert len(expected) >= 3
    assert [found for found, _ in expected] == page.marks()
    assert page.texts(".passage mark small") == [label for _, label in expected]
    page.page.eval_on_selector_all(".passage small", "found => found.forEach(item => item.remove())")
    assert page.texts(".passage") == [text]


def test_answers_are_marked_in_a_long_context(visit, shipped):
    """The best answer is marked and in view, alternatives can be chosen, and offsets behind emoji are right."""
    filler = f"{THUMB} The children of the village like the e{ACCENT}te{ACCENT}. {FAMILY}\n" * 150
    context = f"{filler}At night the owl hunts mice and voles {FLAG}. {filler}"
    page = visit(shipped, "#model=answer&do=answer")
    page.wait()
    page.run(question="What does the owl hunt?", context=context)
    names = page.texts(".bars button bdi")

    assert page.marks() == names[:1] == ["mice and voles"]
    assert page.texts(".passage") == [context]
    for number in (1, 2, 0):
        page.page.locator(".bars button").nth(number).click()
        assert page.marks() == ([] if names[number] == "No answer" else [names[number]])
        assert page.page.locator(".bars button[aria-pressed=true] bdi").all_text_contents() == [names[number]]
    box, mark = (page.page.locator(name).bounding_box() for name in (".passage", ".passage mark"))
    assert box["y"] <= mark["y"] <= box["y"] + box["height"]


def test_no_answer_is_shown(visit, small):
    """For a model that knows unanswerable questions, "No answer" is among the answers, and marks nothing."""
    page = visit(small, "#model=reader&do=answer")
    page.wait()
    page.run(question="who sees", context="the cat sees the old dog near the river")
    names, scores = page.texts(".bars button bdi"), page.texts(".bars .value")
    page.page.click(".bars button:has-text('No answer')")

    assert "No answer" in names
    assert len(names) > 1
    assert page.marks() == []
    assert page.page.locator(".bars small").count() == len(names) - 1
    assert sorted(scores, key=lambda text: -float(text.rstrip("%"))) == scores


def test_no_answer_wins_by_a_threshold(visit, small):
    """All answers stand in the order of their scores, and the one that the model decided for is chosen."""
    page = visit(small)
    spans = [{"text": "cat", "score": 0.6, "start": 4, "end": 7}, {"text": "dog", "score": 0.1, "start": 21, "end": 24}]
    page.answer("answer", {"results": [{"spans": spans, "has_answer": False, "no_answer_score": 0.3}]})
    page.open("reader", "answer")

    assert page.texts(".bars button bdi") == ["cat", "No answer", "dog"]
    assert page.texts(".bars button[aria-pressed=true] bdi") == ["No answer"]
    assert page.texts("#status") == ["No answer, 30.0%"]
    assert page.marks() == []


def test_masked_words_can_be_chosen(visit, small):
    """Each mask offers words, and the text shows those that are chosen."""
    page = visit(small, "#model=filler")
    page.wait()
    page.run(text="the [MASK] sees the [MASK]")
    second = page.page.locator("ol").nth(1).locator("button")
    chosen = second.nth(2).locator("bdi").text_content()
    second.nth(2).click()

    assert page.page.locator("#result ol").count() == 2
    assert page.marks()[1] == chosen
    assert page.texts(".passage")[0].split()[0] == "the"


def test_masked_words_of_bytes_are_text(visit, tmp_path):
    """Tokens of a byte-level vocabulary are shown as the text that they stand for, without the space before it."""
    write_byte_model(tmp_path, likeliest="\u0120caf\u00c3\u00a9")
    with serve(tmp_path, http_port=0) as running:
        page = visit(running)
        page.wait()
        page.run(text="a <mask> a")

        assert page.texts("#status") == ["caf\u00e9"]
        assert page.texts(".bars bdi")[0] == "caf\u00e9"
        assert page.texts(".passage") == ["a caf\u00e9 a"]


def test_masked_words_are_read_without_marks(visit, small):
    """The sentence for screen readers has words, and no marks of the vocabulary."""
    page = visit(small)
    masks = [{"tokens": [{"token": token, "score": 0.5}]} for token in ("##s", "\u2581old")]
    page.answer("fill-mask", {"results": [{"masks": masks}]})
    page.open("filler", "words")
    page.run(text="the cat [MASK] and the [MASK] dog")

    assert page.texts("#status") == ["s, old"]
    assert page.texts(".passage") == ["the cats and the old dog"]


def test_long_results_are_cut(visit, small):
    """The page shows the first of many thousand entities, masks and documents, and how many there are."""
    count = 30_000
    page = visit(small)
    places = ({"start": 4 * number, "end": 4 * number + 3} for number in range(count))
    page.answer("tag", {"results": [{"entities": [{"text": "cat", "label": "PER", "score": 0.5} | x for x in places]}]})
    page.open("tagger", "entities")
    page.run(text="cat " * count)
    assert len(page.marks()) == page.page.locator(".bars .value").count() == MAX_ROWS
    assert page.texts(".bars li.hint") == ["Only the first 300 of 30,000 are shown."]
    assert page.texts("#status") == ["30,000 entities"]

    page.answer("fill-mask", {"results": [{"masks": [{"tokens": [{"token": "cat", "score": 0.5}]}] * 400}]})
    page.open("filler", "words")
    page.run(text="[MASK] " * 400)
    assert page.page.locator("#result ol").count() == 60
    assert page.texts("#result p.hint") == ["Only the first 60 of 400 are shown."]

    page.answer("rerank", {"results": [{"documents": [{"document": place, "score": 0.5} for place in range(500)]}]})
    page.open("scorer", "rank")
    page.run(documents="the cat\n" * 500)
    assert page.page.locator(".bars .value").count() == MAX_ROWS
    assert page.texts(".bars li.hint") == ["Only the first 300 of 500 are shown."]
