"""Messages that no client should send, made from valid ones; the same for the same seed."""

from bertline.v1 import encoder_pb2 as pb
from serving.endpoints.methods import METHODS, SERVICE
from serving.open_inference import service as open_inference
from serving.open_inference.v2 import service_pb2 as oip
from tests.serving.open_inference.messages import infer_request

LIMIT_BYTES = 20_000
SPECIAL = [0, 1, 2, -1, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]

CHARACTERS = [
    *map(chr, range(0x20)),
    *"\x7f\x80\x85\xa0\xad\u200b\u200d\u200e\u200f\u2028\u202e\u2066\ufeff\ufffd\ufffe\U000e0001\U0010ffff",
    *("e\u0301", "\u0301", "a" + "\u0300" * 30, "\u1100\u1161\u11a8", "\u0e01\u0e33", "\u0130", "\ufb01", "\xdf"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\u2764\ufe0f"),
    *("\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u4e2d\u6587", "\u65e5\u672c"),
    *("\uac00", "\u0928\u093f", "the cat", *"dog likes river . ? [MASK] [SEP] [CLS] [PAD] [UNK] ##s".split()),
    *(" ", "  ", "\n"),
]


def text(rng, longest=12):
    """Return a text of words and hard Unicode."""
    return "".join(rng.choice(CHARACTERS) + rng.choice(["", " "]) for _ in range(rng.randrange(longest)))


def _texts(rng):
    return [text(rng) for _ in range(rng.randrange(4))]


def _pairs(rng):
    return [pb.TextInput(text=item, text_pair=rng.choice([None, text(rng)])) for item in _texts(rng)]


def _model(rng, name):
    return pb.ModelRef(
        name=rng.choice([name] * 6 + ["", "nobody", text(rng)]), version=rng.choice([""] * 6 + ["1", "7"])
    )


def _infer(rng):
    name, columns = rng.choice(
        [
            ("embedder", ["text"]),
            ("classifier", ["text", "text_pair"]),
            ("reader", ["question", "context"]),
            ("filler", ["text"]),
            ("tagger", ["text"]),
            ("sparse", ["text"]),
            ("tokens", ["text"]),
            ("embedder", ["input_ids", "attention_mask"]),
        ]
    )
    count, options = rng.randrange(1, 4), rng.choice([{}, {"truncate": True}, {"top_k": rng.choice([0, 1, 9, 2**62])}])
    if columns[0] == "input_ids":
        shape = [[rng.choice([1, 1, 5, 9])] * rng.randrange(1, 5) for _ in range(1)] * count
        return infer_request(name, parameters=options, **dict.fromkeys(columns, shape))
    values = {column: [text(rng) or "cat" for _ in range(count)] for column in columns}
    return infer_request(name, parameters=options, typed=rng.random() < 0.5, **values)


def sound(rng, method):
    """Return a request of a method of either service that may be valid."""
    truncate, top_k = rng.random() < 0.7, rng.choice([0, 0, 1, 3, 2**32 - 1])
    makers = {
        "Embed": lambda: pb.EmbedRequest(
            model=_model(rng, "embedder"), texts=_texts(rng), truncate=truncate, windows=rng.random() < 0.3
        ),
        "EmbedSparse": lambda: pb.EmbedSparseRequest(
            model=_model(rng, "sparse"),
            texts=_texts(rng),
            truncate=truncate,
            top_k=top_k,
            return_tokens=rng.random() < 0.5,
            input_type=rng.choice([0, 0, 1, 2, 7]),
        ),
        "EmbedTokens": lambda: pb.EmbedTokensRequest(
            model=_model(rng, "tokens"),
            texts=_texts(rng),
            truncate=truncate,
            input_type=rng.choice([0, 1, 2, 7]),
            format=rng.choice([0, 0, 1, 2, 9]),
            return_offsets=rng.random() < 0.5,
        ),
        "Classify": lambda: pb.ClassifyRequest(
            model=_model(rng, "classifier"), inputs=_pairs(rng), truncate=truncate, top_k=top_k
        ),
        "Regress": lambda: pb.RegressRequest(model=_model(rng, "scorer"), inputs=_pairs(rng), truncate=truncate),
        "Choose": lambda: pb.ChooseRequest(
            model=_model(rng, "chooser"),
            inputs=[pb.ChooseInput(context=item, choices=[text(rng), "cat", "dog"]) for item in _texts(rng)],
            truncate=truncate,
        ),
        "Answer": lambda: pb.AnswerRequest(
            model=_model(rng, "reader"),
            inputs=[pb.AnswerInput(question="who", contexts=[item, text(rng, 40)]) for item in _texts(rng)],
            truncate=truncate,
            top_k=top_k,
        ),
        "Rerank": lambda: pb.RerankRequest(
            model=_model(rng, rng.choice(["scorer", "reader", "classifier", "tokens"])),
            inputs=[pb.RerankInput(query="who", documents=[item, text(rng, 40)]) for item in _texts(rng)],
            truncate=truncate,
            top_n=top_k,
            label=rng.choice(["", "entailment"]),
        ),
        "Tag": lambda: pb.TagRequest(
            model=_model(rng, "tagger"),
            inputs=[rng.choice([pb.TagInput(text=item), pb.TagInput(words=item.split())]) for item in _texts(rng)],
            truncate=truncate,
            return_words=True,
        ),
        "FillMask": lambda: pb.FillMaskRequest(
            model=_model(rng, "filler"), texts=[item + "[MASK]" for item in _texts(rng)], top_k=top_k, targets=["cat"]
        ),
        "ZeroShot": lambda: pb.ZeroShotRequest(
            model=_model(rng, "classifier"),
            texts=_texts(rng),
            labels=rng.choice([["cat", "dog"], [text(rng), "dog", "dog"]]),
            template=rng.choice(["", "the {}", text(rng)]),
            multi_label=rng.random() < 0.5,
            truncate=truncate,
            top_k=top_k,
        ),
        "Tokenize": lambda: pb.TokenizeRequest(model=_model(rng, "embedder"), inputs=_pairs(rng)),
        "GetModel": lambda: pb.GetModelRequest(model=_model(rng, "embedder")),
        "ListModels": pb.ListModelsRequest,
        "ModelInfer": lambda: _infer(rng),
        "ModelMetadata": lambda: oip.ModelMetadataRequest(name=text(rng) or "embedder"),
        "ModelReady": lambda: oip.ModelReadyRequest(name="embedder", version=text(rng)),
        "ModelConfig": lambda: oip.ModelConfigRequest(name="reader"),
        "RepositoryIndex": lambda: oip.RepositoryIndexRequest(repository_name=rng.choice(["", text(rng)])),
    }
    return makers.get(method, oip.ServerLiveRequest)().SerializeToString()


def varint(number):
    """Return a number as protobuf writes it."""
    number %= 2**64
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def _random(rng, data):
    return rng.randbytes(rng.randrange(200))


def _truncated(rng, data):
    return data[: rng.randrange(len(data) + 1)]


def _flipped(rng, data):
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4) if data else 0):
        found[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _spliced(rng, data):
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice([rng.randbytes(rng.randrange(1, 9)), varint(rng.choice(SPECIAL))]) + data[place:]


def _unknown_field(rng, data):
    field = rng.choice([15, 99, 536_870_911])
    return data + rng.choice(
        [
            varint(field << 3) + varint(rng.choice(SPECIAL)),
            varint(field << 3 | 2) + b"\x03abc",
            varint(field << 3 | 3),
        ]
    )


def _wrong_type(rng, data):
    field, kind = rng.randrange(1, 9), rng.randrange(8)
    value = {0: varint(rng.choice(SPECIAL)), 1: rng.randbytes(8), 2: b"\x05hello", 5: rng.randbytes(4)}.get(kind, b"")
    return data + varint(field << 3 | kind) + value


def _huge_count(rng, data):
    """Return very many empty or tiny elements, or a length without data."""
    field = varint(rng.randrange(1, 8) << 3 | 2)
    many = field + rng.choice([b"\0", b"\x01a", b"\x02\x0a\0"])
    return data + rng.choice([many * (LIMIT_BYTES // len(many)), field + varint(rng.choice(SPECIAL))])


def _many_axes(rng, data):
    """Return one more tensor, of an impossible shape."""
    shape = [rng.choice([1, 127, 2**62])] * rng.choice([3, 300, 2000])
    request = oip.ModelInferRequest(inputs=[{"name": "text", "datatype": "BYTES", "shape": shape}])
    return data + request.SerializeToString()


def _nested(rng, data):
    """Return messages nested deeper than any valid ones."""
    found = b""
    for _ in range(rng.choice([50, 99, 101, 300])):
        found = varint(2 << 3 | 2) + varint(len(found)) + found
    return found


def _not_utf8(rng, data):
    """Replace a letter by lone surrogates, overlong forms or stray bytes."""
    bad = rng.choice(
        [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\xaf", b"\xff", b"\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
    )
    place = rng.randrange(len(data) + 1)
    return data[:place] + bad + data[place + len(bad) :]


MUTATIONS = (
    _random,
    _truncated,
    _flipped,
    _spliced,
    _unknown_field,
    _wrong_type,
    _huge_count,
    _many_axes,
    _nested,
    _not_utf8,
    lambda rng, data: b"",
    lambda rng, data: data,
)

PATHS = [f"/{SERVICE}/{method}" for method in METHODS]
PATHS += [f"/{open_inference.SERVICE}/{method}" for method in open_inference.METHODS]


def messages(rng, count):
    """Yield paths and messages of all methods, sometimes with the message of another method or none."""
    for number in range(count):
        path = PATHS[number % len(PATHS)]
        method = rng.choice(PATHS).rpartition("/")[2] if rng.random() < 0.1 else path.rpartition("/")[2]
        data = rng.choice(MUTATIONS)(rng, sound(rng, method))
        if rng.random() < 0.02:
            path = rng.choice([path + "X", path.lower(), "/" + method, f"/{SERVICE}X/{method}", "/a.B/C"])
        yield path, data
