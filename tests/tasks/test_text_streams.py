"""Detection of UTF-16 and UTF-32, and line ends of three kinds."""

import io
from pathlib import Path

import pytest

import bertline.jobs.text_streams
import tasks.text_streams
from tasks.text_streams import detect_utf16, text_stream

TEXTS = [
    "hello world\nthis\n",
    "a\tb\n1\t0\n",
    "“smart” € quotes\n",
    "Привет мир\n",
    "Ελληνικά\n",
    "שלום\n",
    "مرحبا بكم\n",
    "आज अच्छा है।\n",
    "สวัสดี ครับ\n",
    "今天很好\n我们走吧\n一",
    "日本語、テスト。\n",
    "한국어 문장\n",
    "😀 emoji\n",
    "hi",
    "一二三 四五。\n" * 3000,
    "x" * 9000,
]
WIDE = {
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16LE",
    "utf-16-be": "UTF-16BE",
    "utf-32": "UTF-32",
    "utf-32-le": "UTF-32LE",
    "utf-32-be": "UTF-32BE",
}
OTHERS = "utf-8 utf-8-sig latin-1 cp1251 cp1252 gb18030 big5 shift-jis euc-kr iso2022_jp utf-7".split()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:8]))
def test_encodings_are_detected(text):
    """UTF-16 and UTF-32 are detected with and without a byte order mark, also if the sample ends inside a character."""
    assert {name: detect_utf16(text.encode(name)) for name in WIDE} == WIDE
    assert not any(detect_utf16(text.encode(name, "ignore")) for name in OTHERS)
    for size in range(8, 30):
        assert detect_utf16(text.encode("utf-16-le")[:size]) in ("UTF-16LE", "")
        assert detect_utf16(text.encode()[:size]) == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a",
        b"\0",
        b"\0\0\0\0",
        b"ab\0c",
        b"one\0two\nthree\n",
        b"\x1b[31mred\x1b[0m\n",
        b"\x0c\n",
        bytes(range(256)),
    ],
)
def test_a_stray_control_character_is_no_encoding(content):
    """Control characters and NUL bytes in a file are not taken for UTF-16."""
    assert detect_utf16(content) == ""


def test_a_wide_file_is_refused_in_one_line():
    """UTF-16 is refused with the name of the file and the command that converts it."""
    with pytest.raises(
        ValueError, match=r"^`a` is UTF-16LE, not UTF-8; convert it: iconv -f UTF-16LE -t UTF-8 old.txt > new.txt$"
    ):
        text_stream(io.BytesIO("text\n".encode("utf-16-le")), "`a`")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\rb\rc", [b"a\n", b"b\n", b"c"]),
        (b"a\rb\r", [b"a\n", b"b\n"]),
        (b"a\r\r" * 5000, [b"a\n", b"\n"] * 5000),
        (b"a\r\nb\r\n", [b"a\r\n", b"b\r\n"]),
        (b"a\nb\rc\n", [b"a\n", b"b\rc\n"]),
        (b"a\rb\nc\n", [b"a\rb\n", b"c\n"]),
        (b"a\r" + b"b" * 20_000 + b"\nc\n", [b"a\r" + b"b" * 20_000 + b"\n", b"c\n"]),
        (b"a\r", [b"a\r"]),
        (b"", []),
    ],
    ids=lambda value: str(value[:4]),
)
@pytest.mark.parametrize("buffered", [True, False])
def test_carriage_returns_end_lines_where_no_line_feed_does(content, lines, buffered):
    """Carriage returns end lines if there are no line feeds, in streams with and without `peek`."""
    stream = io.BufferedReader(io.BytesIO(content)) if buffered else io.BytesIO(content)

    assert list(text_stream(stream, "`a`")) == lines


def test_a_stream_can_be_read_from_the_middle():
    """Seeking works, because each byte keeps its position."""
    stream = text_stream(io.BytesIO(b"a\rbc\rd"), "`a`")
    stream.seek(2)

    assert stream.read() == b"bc\nd"


def test_client_and_tasks_read_alike():
    """Client and tasks have the same module, because neither may import the other."""
    files = [Path(module.__file__).read_text() for module in (bertline.jobs.text_streams, tasks.text_streams)]

    assert files[0] == files[1]
