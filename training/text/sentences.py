"""Sentence splitting for running text in many scripts.

- `.` `!` `?` end a sentence before a space and the start of the next one: a capital, a letter of a script without
  capitals, a digit, Spanish `¿` `¡`, or one of these in quotes or brackets. Abbreviations and initials do not count.
- Marks with no other use (`。` `।` `؟` `։` `።` `။` `។` `།` ...) end a sentence even without a space or capital.
- Thai and Lao have no marks: they are split at spaces between words, which end clauses as often as sentences.

Closing quotes and brackets stay with their sentence. Abbreviations of Latin languages other than English (`art.` is a
word in English) count only if the words around belong to such a language.
"""

from __future__ import annotations

import re

# Unicode's Sentence_Terminal (not in `unicodedata`) of scripts that are not Latin or Greek, without Burmese U+104A, a
# comma; and the Tibetan marks, which Unicode leaves out.
_MARKS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u0f0d-\u0f11\u104b\u1362\u1367"
    "\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1c3b\u1c3c\u1c7e"
    "\u1c7f\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb"
    "\ufe12\ufe15\ufe16\ufe52\ufe56\ufe57\uff01\uff1f\uff61\U00010a56\U00010a57\U00011047\U00011048\U000110be-\U000110c1"
    "\U00011141-\U00011143\U000111c5\U000111c6\U00011238\U00011239\U0001144b\U0001144c\U000115c2\U000115c3\U00011641"
    "\U00011642\U0001173c-\U0001173e\U00011c41\U00011c42\U00016a6e\U00016a6f\U00016b37\U00016b38"
)
# Without Georgian, which has small letters only.
_CASED = [chr(code) for code in (*range(0x100, 0x10A0), *range(0x1C80, 0x1C90), *range(0x1D00, 0x2000))]
_CAPITALS = "A-ZＡ-Ｚ" + "".join(filter(str.isupper, _CASED))
_SMALL = "a-zß-öø-ÿªºａ-ｚ" + "".join(filter(str.islower, _CASED))
_GREEK = "\u0370-\u03ff\u1f00-\u1fff"
_ARMENIAN = "\u0531-\u0556\u0561-\u0587"
_IDEOGRAPHIC = "\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_THAI = "\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e45\u0e47-\u0e4e\u0e81-\u0eae\u0eb0-\u0ebd\u0ec0-\u0ec4\u0ec8-\u0ecd"
_CLOSING = r"\"')\]”’"
_CLOSING_ONLY = r"”’)\]»›」』》〉）】〕］｝〗〙﹂﹄｣"
_FOREIGN_CLOSING = "“«»‹›」』》〉）】"
_FOREIGN_OPENING = "«»‹›„‚¿¡「『《〈（【"

# Text after . ! ? at the end of a sentence: it begins with a capital, a digit or, beyond U+00FF, a letter without case.
_SPACE_AND_START = rf"""[{_CLOSING}{_FOREIGN_CLOSING}]*(?:\s»)?\s+
    (?=["'(\[“‘]?(?:[A-Z0-9À-Þ]|[^\W_\x00-\xff{_SMALL}{_THAI}]|[{_FOREIGN_OPENING}]+["'(\[“‘]?[^\W_{_SMALL}])
    |[¿¡]|[—–]\s*[^\W_\x00-\u024f{_SMALL}])"""
_LATIN_ENDS = re.compile(rf"[.!?]{_SPACE_AND_START}", re.VERBOSE)
_NOT_LATIN = re.compile(r"[^\x00-\u024f\u0300-\u036f\u1e00-\u1eff\u2010-\u203b]")
_ENDS = re.compile(
    rf"""[.!?:;‼⁇⁈⁉‽\u037e．፡{_MARKS}]
    (?:
        # Marks with other uses: a space and a start must follow. Greek ; is a question mark, Armenian : a full stop.
        (?:(?<=[.!?‼⁇⁈⁉‽\u037e])|(?<=[{_GREEK}];)(?=\W+[{_GREEK}])|(?<=[{_ARMENIAN}]:)(?=\W+[0-9{_ARMENIAN}]))
        {_SPACE_AND_START}
    |
        # Marks with no other use. ። may be typed as ፡፡; ．is also used in numbers and initials.
        (?:(?<=[{_MARKS}])|(?<=፡)፡|(?<=．)(?<![0-9０-９A-Za-zＡ-Ｚａ-ｚ]．)(?!\d))
        [{_MARKS}.!?．{_CLOSING_ONLY}]*+(?:(?P<quote>["'])[{_MARKS}]*+)?+(?:\s*[།༎])*+
        (?!(?<=\d.)\d)(?!\s*\d+\s*॥)(?!ល។)(?![と,])(?!って)\s*+(?![,;:،؛、，；：…‥—–·・]|(?<=\s)[a-zß-öø-ÿ])
    |
        # ! and ? between letters of scripts without spaces.
        (?<=[{_IDEOGRAPHIC}][!?])[!?{_CLOSING}{_CLOSING_ONLY}]*+(?=[{_IDEOGRAPHIC}“‘「『（])
    )""",
    re.VERBOSE,
)
_LONGEST_TITLE = 40
_CLAUSE_ENDS = re.compile(rf"(?<=[{_THAI}!?])\s+(?=[{_THAI}])")


def _either_case(words: str) -> list[str]:
    return sorted({cased for word in words.split() for cased in (word, word[0].upper() + word[1:])})


_ENGLISH = (
    "e.g i.e cf vs etc al Mr Mrs Ms Dr Prof St Jr Sr No Nos Vol Fig Figs Eq Sec Ref pp ca approx Gen Col Lt Capt Rev "
    "Hon Inc Ltd Co Jan Feb Mar Apr Aug Sep Sept Oct Nov Dec"
).split()
# Cyrillic, Greek, Devanagari, Bengali, Ethiopic
_OTHER_SCRIPTS = _either_case(
    "г гг в вв т т.е т.н т.ч т.к ул им проф акад доц см рис табл обл пос просп корп напр св ср ред изд гл тов гр "
    "вул ім м с р журн чл стор вид див пгт κ κα κος π.χ λ.χ δηλ βλ σελ αρ Δρ καθ डॉ श्री श्रीमती प्रो पं रु सं "
    "ए बी सी डी ई एफ जी एच आई जे के एल एम एन ओ पी आर एस टी यू वी ড ডা মো ዓ.ም"
)
_BEFORE_NUMBERS = _either_case("стр д п ч л кв ст год")

_FOREIGN = _either_case(
    # German, French, Spanish and Portuguese, Italian, Dutch
    "bzw vgl nr Str Abb Bd Aufl Hrsg evtl ggf inkl zzgl geb sog med kath z u u.a d.h z.T bzgl einschl ehem Hl Mio Mrd "
    "Mme Mlle MM Mgr env éd p.ex par.ex por.ex à-d Ste Sra Srta Sres Dra Dña p.ej por.ej Ud Uds EE Lic Ing Arq Profa "
    "Gral Avda Av Pdte séc Exmo Exma sig sigg dott avv p.es per.es ad.es bijv bv dhr mevr mw drs ds o.a d.w.z zgn resp "
    # Polish, Czech and Slovak, Scandinavian, Turkish, Hungarian, Finnish, Vietnamese
    "np m.in tzn tzw tj dr prof hab inż mgr ks św ul r godz wg zob pt red např tzv mj sv doc MUDr JUDr RNDr PhDr č "
    "t.ex bl.a d.v.s s.k f.eks hr jf jfr dvs Doç Yrd Sn örn bkz ún ifj esim ns TS ThS GS PGS TP"
)
_FOREIGN_BEFORE_NUMBERS = _either_case(
    "art núm pág págs pag cap chap fig p s str n tel vol ed ok kl klo kap Ziff Abs blz Tz"
)
_ALL = _ENGLISH + _OTHER_SCRIPTS + _BEFORE_NUMBERS + _FOREIGN + _FOREIGN_BEFORE_NUMBERS
_LAST_WORDS = frozenset(re.split(r"\W", word)[-1] for word in _ALL)
_LONGEST_ABBREVIATION = 3 + max(map(len, _ALL))


def _any_of(words: list[str]) -> str:
    """Return a pattern for abbreviations; a dot inside may be followed by a space, or be replaced by one."""
    return "|".join(re.escape(word).replace(r"\.", r"(?:\.\s?|\s)") for word in words)


_ABBREVIATION = re.compile(
    rf"\b(?:[{_CAPITALS}\u05d0-\u05ea\u0621-\u064a\u10d0-\u10ff]|{'|'.join(map(re.escape, _ENGLISH))}"
    rf"|{_any_of(_OTHER_SCRIPTS)}|(?P<before_number>{_any_of(_BEFORE_NUMBERS)})|(?P<foreign>[À-ÖØ-Þ]|{_any_of(_FOREIGN)})"
    rf"|(?P<foreign_before_number>{_any_of(_FOREIGN_BEFORE_NUMBERS)})|(?P<ordinal>[0-9]{{1,2}}))\.$"
)
_GERMAN_DATE = re.compile("(?:Jan|Feb|März|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|Jahrhundert|Jh)")
_ENGLISH_WORDS = re.compile(
    r"\b(?:the|and|of|to|is|was|were|are|for|with|that|it|he|she|by|on|from|at|The|It|He|She)\b"
)
_FOREIGN_WORDS = re.compile(
    r"\b(?:der|die|das|und|ist|ein|eine|den|dem|nicht|sich|mit|im|vom|ich|Ich|Sie|Das|Wir|Il|Sono|Nel|nel|si|Het|le|la|les|des|du|et|est|une|dans|il|el|los|las|una|que|"
    r"del|y|con|por|para|di|ad|che|della|per|non|sono|o|os|um|uma|em|não|het|een|van|niet|bij|op|en|się|jest|nie|na|w|z|do|je|se|"
    r"ve|och|att|som|är|og|er|på|af|bir|bu|va|hogy|egy|ja|on|và|của|là|de|[A-Za-z]*[ß-öø-ÿĀ-ſ]\w*)\b"
    r"|\b(?:bzw|vgl|Mme|Mlle|Sra|Srta|p\.\s?ej|np|tzn|bijv|např)\."
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, in any script; common abbreviations and initials do not end one.

    Thai and Lao, which have no full stops, are split at spaces between words.
    """
    sentences, start = [], 0
    latin = paragraph.isascii() or not _NOT_LATIN.search(paragraph)
    for match in (_LATIN_ENDS if latin else _ENDS).finditer(paragraph):
        mark, end = match.start() + 1, match.end()
        if _is_abbreviated(paragraph, start, mark, end) or (not latin and _is_in_title(paragraph, start, mark)):
            continue
        if not latin and match["quote"] and paragraph.count(match["quote"], start, mark) % 2 == 0:
            end = match.start("quote")
        sentences.append(paragraph[start:end].strip())
        start = end
    sentences.append(paragraph[start:].strip())
    if not latin and _CLAUSE_ENDS.search(paragraph):
        sentences = [clause for sentence in sentences for clause in _CLAUSE_ENDS.split(sentence)]
    return [sentence for sentence in sentences if sentence]


def _is_abbreviated(paragraph: str, start: int, mark: int, following: int) -> bool:
    """Return whether the full stop that ends at `mark` belongs to an abbreviation or an initial."""
    if paragraph[mark - 1] != ".":
        return False
    first = max(start, mark - _LONGEST_ABBREVIATION)
    word = paragraph[max(first, paragraph.rfind(" ", first, mark) + 1) : mark - 1]
    if len(word) > 2 and word.isalnum() and word not in _LAST_WORDS:
        return False
    found = _ABBREVIATION.search(paragraph, first, mark)
    if not found or not found.lastgroup:
        return bool(found)
    if found.lastgroup.endswith("before_number") and not paragraph[following : following + 1].isdigit():
        return False
    if found.lastgroup == "ordinal" and not _GERMAN_DATE.match(paragraph, following):
        return False
    if found.lastgroup == "before_number":
        return True
    around = paragraph[max(0, mark - 300) : mark + 300]  # is it more of another Latin language than English?
    return len(_FOREIGN_WORDS.findall(around)) > len(_ENGLISH_WORDS.findall(around))


def _is_in_title(paragraph: str, start: int, mark: int) -> bool:
    """Return whether the mark is part of a title, as in 《摔跤吧！爸爸》."""
    first = max(start, mark - _LONGEST_TITLE)
    opening = paragraph.rfind("《", first, mark)
    return opening > paragraph.rfind("》", first, mark) and "》" in paragraph[mark : mark + _LONGEST_TITLE]
