"""Detection of data sets scored by characters, and splitting into characters."""

import pytest

from tasks.text.languages import split_characters, written_without_spaces


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["北京大学位于北京。"], True),
        (["他用 iPhone 12 Pro Max 拍照，照片很清楚。"], True),
        (["東京タワーはどこですか。"], True),
        (["กรุงเทพมหานครเป็นเมืองหลวง"], True),
        (["서울은 대한민국(大韓民國)의 수도이며 가장 큰 도시이다."], False),
        (["Die Straße heißt „Unter den Linden“."], False),
        (["Столица России — Москва."], False),
        (["The Yuan dynasty (元朝) was founded by Kublai Khan."], False),
        ([], False),
        ([""], False),
        (["An English text."] * 99 + ["北京大学"], True),
        (["An English text."] * 100 + ["北京大学"], False),
    ],
)
def test_data_sets_without_spaces(texts, expected):
    """A data set counts as written without spaces if at least 1% of its texts are, quoted names aside."""
    assert written_without_spaces(texts) is expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("他用 iPhone 4S。", ["他", "用", "iphone", "4s"]),
        ("1949年10月1日", ["1949", "年", "10", "月", "1", "日"]),
        ("《三国演义》（罗贯中）", ["三", "国", "演", "义", "罗", "贯", "中"]),
        ("サッカー・クラブ", ["サ", "ッ", "カ", "ー", "ク", "ラ", "ブ"]),
        ("約3.5％＋α", ["約", "35α"]),
        ("กา ดำ", ["ก", "า", "ด", "ำ"]),
        ("서울 시청", ["서울", "시청"]),
        ("\u3000。…—\n", []),
    ],
)
def test_characters_and_words(text, tokens):
    """Scripts without spaces give a token a character, and other text a lower-cased token a word."""
    assert split_characters(text) == tokens
