"""The page to try the models in, used in Chromium as people do: choose, type, read."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import RobertaProcessing

from bertline.v1 import encoder_pb2 as pb
from tasks import settings_from_dict
from tasks.files import sha256
from tasks.model_directory import MODEL_FILE
from tasks.tokenizer_files import TOKENIZER_FILE
from tests.serving.conftest import serve
from tests.serving.http_api.requests import port_of, send
from tests.serving.models import SETTINGS, VOCAB, edit_manifest, write_model
from tests.toy_tokenizers import ROBERTA_TOKENS

ROOT = Path(__file__).parents[3]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FAMILY, FLAG, THUMB = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1eb\U0001f1f7", "\U0001f44d\U0001f3fd"
ACCENT = "\u0301"
ATTACK = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script><b>bold</b>'
NAMES = {
    "classification": "classifier",
    "tagging": "tagger",
    "spans": "reader",
    "regression": "scorer",
    "multiple-choice": "chooser",
    "masked-lm": "filler",
    "embedding": "embedder",
    "sparse-embedding": "sparse",
    "token-embedding": "matcher",
}
SCHEMES = ["light", "dark"]
MAX_FIRST_VIEW_S = 1.0
NO_CHROMIUM = "no chromium is on the PATH (Debian: apt-get install chromium)"
NO_DRIVER = "playwright and axe-playwright-python are not installed; they are in the group `browser`"
OPERATIONS = [
    ("classifier", "labels"),
    ("classifier", "own-labels"),
    ("tagger", "entities"),
    ("reader", "answer"),
    ("reader", "rank"),
    ("scorer", "number"),
    ("scorer", "rank"),
    ("chooser", "choose"),
    ("filler", "words"),
    ("embedder", "similarity"),
    ("embedder", "search"),
    ("sparse", "weights"),
    ("matcher", "rank"),
]
MAX_ROWS = 300
FOREIGN = "The reply is not from this server; is there a proxy?"
HTML = "<!doctype html><title>Log in</title>"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason=NO_DRIVER)
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shipped():
    """Server of the models of the repository."""
    with serve(ROOT / "models", http_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def small_models(tmp_path_factory):
    """Directory with a tiny model of each task, which reads the page's examples whole."""
    models = tmp_path_factory.mktemp("models")
    for task, name in NAMES.items():
        longer = {"max_seq_length": 64} | ({"query_length": 32} if task == "token-embedding" else {})
        settings = settings_from_dict(task, SETTINGS[task] | longer)
        write_model(models, name, task=task, settings=settings)
    return models


@pytest.fixture(scope="module")
def small(small_models):
    """Server of the tiny models."""
    with serve(small_models, http_port=0) as running:
        yield running


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


class Page:
    """Page in a window of its own, and what the browser complained about."""

    def __init__(self, browser, server, place="", **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(f"http://127.0.0.1:{port_of(server)}/{place}")

    def open(self, model, operation):
        """Go to an operation of a model by the address, and wait for its result."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#model={model}&do={operation}")
        self.wait()

    def wait(self):
        """Wait until a result or an error is there."""
        self.page.wait_for_selector("#result:not([aria-busy]) > *, #error:not([hidden])")

    def wait_for_text(self, selector, text):
        """Wait until an element has a text. (`wait_for_function` would need `eval`, which the page forbids.)"""
        self.page.wait_for_selector(f'{selector}:has-text("{text}")', state="attached")

    def run(self, **fields):
        """Type into fields, run, and wait for the result."""
        for name, text in fields.items():
            self.page.fill(f"#field-{name}", text)
        with self.page.expect_response("**/v1/*"):
            self.page.click("#run")
        self.wait()

    def answer(self, route, values):
        """Answer calls of a route in place of the server, until it is given another answer."""
        self.page.route(f"**/v1/{route}", lambda route: route.fulfill(json=values))

    def texts(self, selector):
        return self.page.locator(selector).all_text_contents()

    def marks(self):
        """Return the marked parts of the text, without their labels."""
        return self.page.eval_on_selector_all(".passage mark", "found => found.map(item => item.firstChild.data)")


def violations(page):
    """Return what axe finds wrong: the rule, and the first element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_DRIVER).Axe()
    return [(item["id"], item["nodes"][0]["html"]) for item in axe.run(page.page).response["violations"]]


@pytest.fixture
def visit(browser):
    """Return a function that opens the page of a server; all must end without complaints of the browser."""
    opened = []

    def visit(server, place="", **options):
        opened.append(Page(browser, server, place, **options))
        opened[-1].base = f"http://127.0.0.1:{port_of(server)}/"
        return opened[-1]

    yield visit
    for page in opened:
        page.context.close()
    assert [text for page in opened for text in page.complaints if "status of 4" not in text] == []


def test_every_operation_shows_a_result(visit, small):
    """Each operation of each model runs on its example, with times, tokens and code, and only what fits is offered."""
    page = visit(small)
    for model, operation in OPERATIONS:
        page.open(model, operation)

        assert page.page.input_value("#model") == model
        assert page.texts("#error") == [""], (model, operation)
        assert len(page.texts("#timings dd")) == 4
        assert page.texts("#status") != [""]
        offered = page.page.eval_on_selector_all("#operations input", "found => found.map(item => item.value)")
        assert offered == [name for other, name in OPERATIONS if other == model]


def test_choosing_and_typing(visit, shipped):
    """A person chooses a model in the list, types and runs; the labels change, and the address names the model."""
    page = visit(shipped)
    page.page.select_option("#model", "sentiment")
    page.page.wait_for_selector(".bars >> text=positive")
    page.run(text="Two hours that nobody will give me back.")

    assert page.texts(".bars .chosen .text") == ["negative"]
    assert page.texts("#status")[0].startswith("negative, ")
    assert "model=sentiment" in page.page.url


def test_the_keyboard_suffices(visit, shipped):
    """All is reached by Tab in order, and Ctrl + Enter runs; nothing needs a mouse."""
    page = visit(shipped, "#model=answer&do=answer")
    page.wait()
    reached = []
    for _ in range(16):
        page.page.keyboard.press("Tab")
        reached.append(page.page.evaluate("document.activeElement.id || document.activeElement.name || ''"))
    page.page.focus("#field-question")
    page.page.keyboard.press("Control+A")
    page.page.keyboard.type("Where does the owl wait?")
    with page.page.expect_response("**/v1/answer"):
        page.page.keyboard.press("Control+Enter")
    page.wait_for_text("#status", "barns")

    order = [name for name in ("model", "operations", "field-question", "field-context", "run") if name in reached]
    assert [name for name in reached if name in order] == order
    assert page.page.locator(".bars button").first.get_attribute("aria-pressed") == "true"


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

    assert page.marks() == names[:1]
    assert page.texts(".passage") == [context]
    for number in (1, 2, 0):
        page.page.locator(".bars button").nth(number).click()
        assert page.marks() == [names[number]]
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


def test_similarity_is_a_table(visit, shipped):
    """The heat map is a table with a row and a column for each sentence, and its numbers are the cosines."""
    lines = ["A man plays the guitar.", "Someone is making music.", f"{FAMILY} 我喜欢 e{ACCENT}te{ACCENT}"]
    page = visit(shipped, "#model=embed&do=similarity")
    page.wait()
    page.run(texts="\n\n".join(lines))
    cells = page.texts(".heat tbody td")

    assert page.texts(".heat tbody th bdi") == lines
    assert [cells[0], cells[4], cells[8]] == ["1.00"] * 3
    assert cells[1] == cells[3]
    assert float(cells[1]) > float(cells[2])
    assert page.texts("#status")[0].startswith("Most similar: 1 and 2")


def test_long_results_are_cut(visit, small):
    """The page marks and lists the first of many thousand entities, and says how many there are."""
    count = 30_000
    page = visit(small)
    places = ({"start": 4 * number, "end": 4 * number + 3} for number in range(count))
    page.answer("tag", {"results": [{"entities": [{"text": "cat", "label": "PER", "score": 0.5} | x for x in places]}]})
    page.open("tagger", "entities")
    page.run(text="cat " * count)

    assert len(page.marks()) == MAX_ROWS
    assert page.page.locator(".bars .value").count() == MAX_ROWS
    assert page.texts(".bars li.hint") == ["Only the first 300 of 30,000 are shown."]
    assert page.texts("#status") == ["30,000 entities"]


def test_many_masks_and_lines_are_cut(visit, small):
    """Lists for the first masks are shown, and rows of the first documents; the page says how many there are."""
    page = visit(small)
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


@pytest.mark.parametrize(
    ("model", "operation", "field"),
    [
        ("embedder", "search", "documents"),
        ("embedder", "similarity", "texts"),
        ("classifier", "own-labels", "labels"),
        ("chooser", "choose", "choices"),
    ],
)
def test_blank_lines_are_told(visit, small, model, operation, field):
    """Lines that are all blank give one line that says so, and no request."""
    page = visit(small, f"#model={model}&do={operation}")
    page.wait()
    page.page.on("request", lambda request: page.complaints.append(request.url))
    page.page.fill(f"#field-{field}", " \n\t\n")
    page.page.click("#run")
    page.wait_for_text("#error", "blank")

    label = page.texts(f"label[for=field-{field}]")[0]
    assert page.texts("#error") == [f'All lines of "{label}" are blank; type some text.']
    assert page.texts("#result") == [""]


def test_half_of_a_surrogate_pair_is_told(visit, small):
    """Half of a pair of surrogates is told with its place before a request; whole pairs are characters."""
    page = visit(small, "#model=embedder&do=similarity")
    page.wait()
    page.page.evaluate("document.getElementById('field-texts').value = '\U0001f44d\\nthe \U0001f44d\\ud83d cat'")
    page.page.click("#run")
    page.wait_for_text("#error", "surrogate")

    place = 'Character 6 of text 2 in "Sentences, one per line"'
    assert page.texts("#error") == [f"{place} is half of a surrogate pair, which is no character; remove it."]
    page.open("classifier", "labels")
    page.page.evaluate("document.getElementById('field-text').value = '\\udc4d'")
    page.page.click("#run")
    page.wait_for_text("#error", "Character 1 in")


@pytest.mark.parametrize("body", [HTML, '{"results": [{"labels": [{"label": "ye', "{}", "null", '{"results": []}'])
@pytest.mark.parametrize("route", ["classify", "list-models", "tokenize"])
def test_replies_of_others_are_told(visit, small, route, body):
    """Where a proxy answers with a page, half a reply or other JSON, one line says so."""
    page = visit(small)
    page.wait()
    page.page.route(f"**/v1/{route}", lambda route: route.fulfill(body=body))
    page.open({"tokenize": "filler"}.get(route, "classifier"), "")

    assert page.texts("#error") == [FOREIGN]
    assert page.texts("#result") == [""]


def test_replies_of_others_below_the_result_are_told(visit, small):
    """Tokens, code and load say so too when a proxy answers in place of the server."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    for path in ("v1/tokenize", "playground/server", "metrics"):
        page.page.route(f"**/{path}", lambda route: route.fulfill(body=HTML))
    for name, target in (("#tokens", "#token-list"), ("#code", "#copied"), ("#load", "#gauges")):
        page.page.click(f"{name} summary")
        page.wait_for_text(target, FOREIGN)

    assert page.page.locator("#result .bars li").count() == 3


def test_a_broken_connection_is_told(visit, small):
    """Where the connection ends within a reply, one line says so."""
    page = visit(small)
    page.wait()
    found = page.page.evaluate(
        """async () => {
          const { textOf } = await import("/playground/api.js");
          return textOf({ text: () => Promise.reject(new TypeError("network error")) }).catch((error) => error.message);
        }"""
    )

    assert found == "The connection ended before the whole reply was there."


def test_weights_of_tokens(visit, small):
    """A sparse vector is shown as its tokens, the largest weight first, with bars in proportion to it."""
    page = visit(small, "#model=sparse&do=weights")
    page.wait()
    page.run(text="the cat")
    inputs = {"model": {"name": "sparse"}, "texts": ["the cat"], "return_tokens": True}
    [expected] = send(small, "POST", "/v1/embed-sparse", inputs).json()["results"]

    assert page.texts(".bars bdi") == expected["tokens"]
    assert [float(value) for value in page.texts(".bars .value")] == pytest.approx(expected["values"], abs=1e-3)
    assert page.texts("#status") == [f"{len(expected['tokens'])} tokens"]
    page.answer("embed-sparse", {"results": [{"indices": [], "values": [], "tokens": []}]})
    page.run(text="the dog")
    assert page.texts("#result") == ["No token has a weight."]


def test_vectors_of_tokens_rank_the_search(visit, small):
    """A model of vectors of tokens is among those that a search may be ranked with."""
    page = visit(small, "#model=embedder&do=search")
    page.wait()

    assert page.texts("#field-ranker option") == ["nothing", "matcher", "reader", "scorer"]
    page.page.select_option("#field-ranker", "matcher")
    page.run()
    assert all("by vectors" in note for note in page.texts(".bars small"))


def test_only_texts_of_the_table_are_compared(visit, small):
    """The most similar pair is one that the table shows, however many lines there are."""
    page = visit(small, "#model=embedder&do=similarity")
    page.wait()
    words = ["the", "cat", "dog", "bird", "river", "tree", "who", "what", "sees", "likes", "near", "under", "runs"]
    lines = [f"{first} {second}" for first in words[:2] for second in words if first != second]
    page.run(texts="\n".join([*lines, "old", "old", "old"]))

    assert page.page.locator(".heat tbody tr").count() == len(lines) == 24
    assert max(map(int, re.findall(r"\d+(?= |,)", page.texts("#status")[0]))) <= len(lines)


def test_search_ranks_lines(visit, shipped):
    """Lines come in the order of their vectors, and a ranking model changes it when it is chosen."""
    page = visit(shipped, "#model=embed&do=search")
    page.wait()
    page.run(query="Who makes music?", documents="The train is late.\n\nA band plays songs.\nOnions are sliced.")
    assert page.texts(".bars small")[0] == "text 2"
    by_vectors = page.texts(".bars bdi")
    page.page.select_option("#field-ranker", "answer")
    page.run()

    assert by_vectors[0] == "A band plays songs."
    assert sorted(page.texts(".bars bdi")) == sorted(by_vectors)
    assert all("by vectors" in note for note in page.texts(".bars small"))
    assert page.texts("#timings .hint") == ["3 requests, times added up"]


def test_text_is_never_html(visit, shipped, tmp_path):
    """Text that looks like HTML stays text, in inputs, results, tokens, code, errors and in what a model says."""
    page = visit(shipped)
    names = {"tag": "text", "answer": "context", "sentiment": "text", "embed": "texts"}
    for model, field in names.items():
        page.open(model, "")
        page.run(**{field: ATTACK})
        for name in ("#tokens", "#code"):
            page.page.click(f"{name} summary")
        page.wait_for_text("#snippet", "curl")
        assert page.page.locator("main").locator("img, script, b").count() == 0
    settings = settings_from_dict("classification", {"max_seq_length": 32, "labels": [ATTACK, "b", "c"]})
    write_model(tmp_path, "labels", task="classification", settings=settings)
    with serve(tmp_path, http_port=0) as running:
        other = visit(running)
        other.wait()
        other.run(text="the cat " * 100)

        assert ATTACK in other.texts("#about")[0]
        assert "too long" in other.texts("#error")[0]
        assert other.page.locator("main").locator("img, script, b").count() == 0
    assert page.page.evaluate("window.attacked") is None


def test_errors_are_told(visit, small):
    """An error of the server is an alert with its reason, and the option that it names helps."""
    page = visit(small, "#model=embedder&do=similarity")
    page.wait()
    page.run(texts="the cat " * 50)
    error = page.page.locator("#error")

    assert "too long" in error.text_content()
    assert error.get_attribute("role") == "alert"
    page.page.click("#fields summary")
    page.page.check("#field-truncate")
    page.run()
    assert error.is_hidden()
    assert page.texts("#result .notice") == ["38 tokens were cut; the model did not read them."]
    page.run(texts="the cat\n" + "the cat " * 50 + "\n" + "the cat " * 32)
    assert page.texts("#result .notice") == ["40 tokens of texts 2 and 3 were cut; the model did not read them."]
    page.open("embedder", "search")
    page.page.click("#fields summary")
    page.page.check("#field-truncate")
    page.run(query="the cat " * 50, documents="the cat")
    assert page.texts("#result .notice") == ["40 tokens of the query were cut; the model did not read them."]


def test_tokens_are_shown(visit, small):
    """Opened, the tokens of the text are shown with their ids, and follow the next run."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    page.page.click("#tokens summary")
    page.page.wait_for_selector(".tokens li")
    with page.page.expect_response("**/v1/tokenize"):
        page.run(text="the cats <b>")
    page.page.wait_for_selector("text=##s")

    assert page.texts(".tokens bdi")[:4] == ["[CLS]", "the", "cat", "##s"]
    assert page.texts(".tokens small")[0] == "2"


def test_labels_are_put_into_the_sentence_as_they_are(visit, small):
    """A label with characters that JavaScript gives a meaning in replacements stays as it is."""
    page = visit(small, "#model=classifier&do=own-labels")
    page.wait()
    page.page.click("#tokens summary")
    page.page.wait_for_selector(".tokens li")
    page.page.fill("#field-labels", "$& and $$\nother")
    with page.page.expect_request("**/v1/tokenize") as request:
        page.page.click("#run")

    assert request.value.post_data_json["inputs"][0]["text_pair"] == "This example is about $& and $$."


def test_the_result_stays_if_tokens_or_code_fail(visit, small):
    """A failure of what is below the result is told there, and a later run mends it."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    for path in ("v1/tokenize", "playground/server"):
        page.page.route(f"**/{path}", lambda route: route.fulfill(status=429, json={"message": "Too many requests."}))
    for name in ("#tokens", "#code"):
        page.page.click(f"{name} summary")
    page.wait_for_text("#token-list", "Too many requests.")
    page.wait_for_text("#copied", "Too many requests.")
    page.run(text="the cat")

    assert page.page.locator("#result .bars li").count() == 3
    assert page.page.locator("#error").is_hidden()
    page.page.unroute_all()
    page.run(text="the dog")
    page.wait_for_text("#token-list", "dog")
    page.wait_for_text("#snippet", "the dog")
    assert page.texts("#copied") == [""]


def test_the_list_of_models_is_loaded_again(visit, small):
    """The list follows the server when it gets the focus or the page is visible again; the chosen model stays."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    page.page.fill("#field-text", "the cat")
    models = json.loads(send(small, "POST", "/v1/list-models", {}).data)["models"]
    actions = {
        "tagger": lambda: page.page.focus("#model"),
        "classifier": lambda: page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))"),
    }
    for gone, chosen in (("tagger", "classifier"), ("classifier", "chooser")):
        models = [info for info in models if info["model"]["name"] != gone]
        page.answer("list-models", {"models": models})
        actions[gone]()
        page.page.wait_for_selector(f"#model:not(:has(option[value={gone}]))")
        page.wait()

        assert page.page.input_value("#model") == chosen
        assert page.texts("#error") == [""]
        if chosen == "classifier":
            assert page.page.input_value("#field-text") == "the cat"


def test_a_model_of_an_unknown_task(visit, small):
    """A model that the page has no operation for shows one line, and no form."""
    models = json.loads(send(small, "POST", "/v1/list-models", {}).data)["models"]
    models[0]["task"] = "new-task"
    page = visit(small)
    page.answer("list-models", {"models": models})
    page.open(models[0]["model"]["name"], "labels")

    assert page.texts("#result") == ["This page cannot run models of task new-task. Call them over gRPC or HTTP."]
    assert page.page.locator("#input").is_hidden()
    assert page.page.locator("#error").is_hidden()
    page.page.select_option("#model", models[1]["model"]["name"])
    page.page.wait_for_selector("#input:not([hidden])")


def test_code_of_the_request_runs(visit, shipped):
    """The command for curl and the Python program give what the page shows."""
    text = f'It\'s "good" {FAMILY} \\ $HOME `ls` {ACCENT}!'
    page = visit(shipped, "#model=sentiment")
    page.wait()
    page.run(text=text)
    page.page.click("#code summary")
    label, value = page.texts(".bars .chosen .text")[0], page.texts(".bars .chosen .value")[0]
    commands = {}
    for language, start in (("curl", "curl"), ("python", "with Client"), ("grpc", "grpcurl")):
        page.page.check(f"#languages input[value={language}]", force=True)
        page.wait_for_text("#snippet", start)
        commands[language] = page.page.locator("#snippet").text_content()
    curl = subprocess.run(["bash", "-c", commands["curl"]], capture_output=True, text=True, check=True).stdout
    program = [sys.executable, "-c", commands["python"]]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "clients")}
    python = subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout

    score = f"{float(value.rstrip('%')) / 100:.2f}"
    assert f'"label":"{label}"' in curl
    assert f"label='{label}'" in python
    assert score[:3] in curl
    assert score[:3] in python
    assert f"127.0.0.1:{shipped.server.port} bertline.v1.Encoder/Classify" in commands["grpc"]


def test_the_token_stays_in_memory(visit, small_models, tmp_path):
    """The page asks for a token, says that a wrong one is wrong, and forgets the right one when it is loaded anew."""
    (tmp_path / "tokens").write_text("a-token")
    with serve(small_models, http_port=0, tokens_file=tmp_path / "tokens") as running:
        page = visit(running)
        page.page.wait_for_selector("#token")
        assert page.page.evaluate("document.activeElement.id") == "token"
        for token, expected in (("wrong", "token"), ("not ascii \u00e9", "ASCII")):
            page.page.fill("#token", token)
            page.page.keyboard.press("Enter")
            page.page.wait_for_selector(f"#error:has-text('{expected}')")
        page.page.fill("#token", "a-token")
        page.page.click("text=Use token")
        page.wait()
        page.page.click("#code summary")
        page.wait_for_text("#snippet", "$TOKEN")

        assert page.page.locator("#token-form").is_hidden()
        assert page.page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        page.page.reload()
        page.page.wait_for_selector("#token")


def test_the_load_is_live(visit, small):
    """Opened, the view shows rates, latency and queue, and counts what the page did."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    page.page.click("#load summary")
    page.page.wait_for_selector("#gauges dd")
    for _ in range(5):
        page.run()
    page.page.wait_for_selector("#gauges div:has-text('Requests') dd:text-matches('[1-9]')")

    assert len(page.texts("#gauges dd")) == 7
    assert page.texts("#gauges dd")[3].endswith(" ms")


def test_health_checks_are_no_load(visit, small):
    """Calls of TEI's route at the address of the page count, and health checks do not."""
    page = visit(small)
    page.wait()
    read = """async () => {
      const { totals } = await import("/playground/load.js");
      return totals(await (await fetch("/metrics")).text()).handled;
    }"""
    before = page.page.evaluate(read)
    send(small, "POST", "/", {"inputs": "the cat"})
    for path in ("/", "/health", "/v2/health/live", "/v2/health/ready", "/v2/models/filler/ready"):
        send(small, "GET", path)

    assert page.page.evaluate(read) == before + 1


def test_rates_survive_a_restart(visit, small):
    """When counters fall, the earlier sample is dropped, so that no rate is negative."""
    page = visit(small)
    counters = iter([100, 3, *range(5, 100, 2)])
    metrics = "**/metrics", lambda route: route.fulfill(body=f"bertline_batch_rows_sum {next(counters)}\n")
    page.page.route(*metrics)
    page.wait()
    page.page.click("#load summary")
    page.page.wait_for_selector("#gauges div:has-text('Sequences') dd:text-matches('[0-9]')")

    assert 0 < float(page.texts("#gauges div:has-text('Sequences') dd")[0]) <= 1


def test_quantiles(visit, small):
    """Latencies are estimated as Prometheus does, from what was added between two pages."""
    page = visit(small)
    found = page.page.evaluate(
        """async () => {
          const { quantile } = await import("/playground/load.js");
          const [before, now] = [[[1, 5], [2, 5], [Infinity, 5]], [[1, 5], [2, 15], [Infinity, 15]]];
          return [quantile(0.5, new Map(now), new Map(before)), quantile(0.5, new Map(now), new Map(now)) ?? null];
        }"""
    )

    assert found == [1.5, None]


def test_a_port_without_metrics_says_so(visit, small_models):
    """Where the metrics have an address of their own, the view says why it is empty."""
    with serve(small_models, http_port=0, metrics_host="127.0.0.1") as running:
        page = visit(running)
        page.wait()
        page.page.click("#load summary")
        page.page.wait_for_selector("#gauges >> text=--metrics-host")


def test_narrow_windows(visit, small):
    """At 320 px nothing makes the page scroll sideways, with everything open."""
    page = visit(small, viewport={"width": 320, "height": 640})
    for model, operation in OPERATIONS:
        page.open(model, operation)
        for name in ("#tokens", "#code", "#load"):
            page.page.click(f"{name} summary")
        page.page.wait_for_selector("#snippet:not(:empty)")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 320, (model, operation)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_accessibility(visit, small, scheme):
    """axe finds no violation, in light and dark, with everything open."""
    page = visit(small, color_scheme=scheme)
    for model, operation in OPERATIONS:
        page.open(model, operation)
        for name in ("#tokens", "#code", "#load"):
            page.page.click(f"{name} summary")
        page.page.wait_for_selector("#snippet:not(:empty)")
        page.page.wait_for_selector(".tokens li")
        assert violations(page) == [], (model, operation)


def test_accessibility_of_the_form_for_tokens(visit, small_models, tmp_path):
    """axe finds no violation where a token is asked for and a wrong one is told."""
    (tmp_path / "tokens").write_text("a-token")
    with serve(small_models, http_port=0, tokens_file=tmp_path / "tokens") as running:
        page = visit(running)
        page.page.fill("#token", "wrong")
        page.page.keyboard.press("Enter")
        page.wait()

        assert violations(page) == []


def test_the_first_view_is_fast(visit, shipped):
    """The first result is there within a second of opening the page."""
    seconds = []
    for _ in range(3):
        page = visit(shipped)
        page.wait()
        seconds.append(page.page.evaluate("performance.now()") / 1000)

    assert min(seconds) < MAX_FIRST_VIEW_S
