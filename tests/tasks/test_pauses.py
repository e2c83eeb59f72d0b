"""Encoding does not block other threads."""

import sys
import threading
import time

import pytest

from tasks.classification import Classification, ClassificationExample, ClassificationSettings
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.masked_lm import ClozeExample, MaskedLM, MaskedLMSettings
from tasks.spans import SpanExample, Spans, SpanSettings
from tasks.tagging import Tagging, TaggingExample, TaggingSettings

LONGEST_S = 0.03
"""Longest allowed pause on a busy machine. It is 5 ms on a quiet one, and half a second for a text in one piece."""
ATTEMPTS = 5

TEXTS = {
    "full stops": ".",
    "one word": "a",
    "emoji": "🙂",
    "accents": "e\u0301",
    "Chinese": "中",
    "Thai": "ก\u0e31",
    "special tokens": "[SEP]",
    "prose": "the cats, a b. ",
}


def embed(tokenizer, text):
    Embedding(tokenizer, EmbeddingSettings(), windows=True).encode([text])


def embed_beginning(tokenizer, text):
    Embedding(tokenizer, EmbeddingSettings()).encode([text])


def classify(tokenizer, text):
    settings = ClassificationSettings(labels=("no", "yes"))
    Classification(tokenizer, settings).encode([ClassificationExample(text, text)])


def fill_mask(tokenizer, text):
    MaskedLM(tokenizer, MaskedLMSettings()).encode([ClozeExample("[MASK] " + text)])


def answer(tokenizer, text):
    Spans(tokenizer, SpanSettings()).encode([SpanExample("who", text)])


def tag(tokenizer, text):
    task = Tagging(tokenizer, TaggingSettings(labels=("O", "B-PER"), doc_stride=64))
    task.encode([task.complete(TaggingExample((), source=text))])


def longest_pause(function):
    """Return the longest time for which another thread did not run while this one used the CPU."""
    clock, done, pauses = time.pthread_getcpuclockid(threading.get_ident()), threading.Event(), [0.0]

    def tick():
        last_s, last_cpu_s = time.perf_counter(), time.clock_gettime(clock)
        while not done.is_set():
            time.sleep(0)
            now_s, now_cpu_s = time.perf_counter(), time.clock_gettime(clock)
            pauses.append(min(now_s - last_s, now_cpu_s - last_cpu_s))
            last_s, last_cpu_s = now_s, now_cpu_s

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        function()
    finally:
        done.set()
        thread.join()
    return max(pauses)


@pytest.fixture(autouse=True)
def switch_interval_of_the_server():
    """Set the server's switch interval of threads, 1 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    yield
    sys.setswitchinterval(before)


def assert_short_pauses(read, tokenizer, text):
    found = []
    while len(found) < ATTEMPTS and min(found, default=1) > LONGEST_S:
        found.append(longest_pause(lambda: read(tokenizer, text)))

    assert min(found) <= LONGEST_S, found


@pytest.mark.parametrize("read", [embed, answer, tag])
def test_a_long_text_stops_no_other_thread(tokenizer, read):
    """Encoding a text of 200,000 tokens does not block other threads."""
    assert_short_pauses(read, tokenizer, "." * 200_000)


@pytest.mark.slow
@pytest.mark.parametrize("unit", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("read", [embed, embed_beginning, classify, fill_mask, answer, tag])
def test_no_text_stops_other_threads(tokenizer, read, unit):
    """Encoding a million characters of any kind does not block other threads, for any task."""
    assert_short_pauses(read, tokenizer, unit * (1_000_000 // len(unit)))
