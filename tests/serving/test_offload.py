import threading

import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.offload import SMALL_BYTES
from tasks.tokenizer import Tokenizer
from tests.serving.open_inference import infer_request, stub

LONG = "the cat sees " * 60
SOME = ["cat"] * 20


@pytest.mark.parametrize(
    ("method", "request_", "is_beside"),
    [
        ("Embed", pb.EmbedRequest(texts=["the cat", "dog"]), False),
        ("Embed", pb.EmbedRequest(texts=SOME), True),
        ("Choose", pb.ChooseRequest(inputs=[pb.ChooseInput(context="who", choices=["cat", "dog"])]), False),
        ("Choose", pb.ChooseRequest(inputs=[pb.ChooseInput(choices=SOME)]), True),
        (
            "Choose",
            pb.ChooseRequest(inputs=[pb.ChooseInput(context="cat", question=LONG, choices=SOME[:2])], truncate=True),
            True,
        ),
        ("Answer", pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=SOME[:2])]), False),
        ("Answer", pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=SOME)]), True),
        ("Tag", pb.TagRequest(inputs=[pb.TagInput(text="cat")] * 20), True),
        ("Tokenize", pb.TokenizeRequest(model=pb.ModelRef(name="embedder"), inputs=[pb.TextInput(text="cat")]), True),
        ("ModelInfer", infer_request("embedder", text=["the cat", "dog"]), False),
        ("ModelInfer", infer_request("tagger", text=SOME), True),
        ("ModelInfer", infer_request("chooser", choices=[SOME]), True),
        (
            "ModelInfer",
            infer_request("chooser", choices=[SOME[:2]], question=[LONG], parameters={"truncate": True}),
            True,
        ),
    ],
)
def test_much_work_in_few_bytes_is_done_beside_the_event_loop(server, monkeypatch, method, request_, is_beside):
    """Where a request of any size becomes many sequences, or a text is read many times, others do not wait for it."""
    tokenize, threads = Tokenizer.tokenize, set()

    def noted(*arguments):
        threads.add(threading.current_thread().name.partition("_")[0])
        return tokenize(*arguments)

    monkeypatch.setattr(Tokenizer, "tokenize", noted)
    assert request_.ByteSize() <= SMALL_BYTES
    call = stub(server, method) if method == "ModelInfer" else getattr(server.stub, method)
    call(request_, timeout=20)

    assert len(threads) == 1
    assert ("codec" in threads) is is_beside
