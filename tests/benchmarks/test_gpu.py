"""The benchmark of a GPU, as a dry run on the CPU."""

import json

import pytest

import benchmarks.gpu as gpu
from benchmarks.report import Part, Table, to_markdown
from tests.commands import call

DRY = ["--device", "cpu", "--seconds", "0.3", "--num-steps", "20"]


def run(parts, out, monkeypatch, capfd):
    """Run parts of the benchmark; return how it ended, and the report."""
    ended = call(gpu.main, [*parts, *DRY, "--out", str(out)], monkeypatch, capfd)
    return ended, json.loads(out.with_suffix(".json").read_text("utf-8"))["parts"]


def test_a_failed_part_does_not_stop_the_others(tmp_path, monkeypatch, capfd):
    """The report keeps what a part had found, and its error; the exit code shows that one failed."""

    def fails(settings):
        yield Table("begun", [{"step": "first", "ms": 1.5}])
        raise ValueError("no memory\nat all")

    def works(settings):
        yield Table("done", [{"step": "second", "ms": 2.5}])

    monkeypatch.setattr(gpu, "PARTS", {"server": fails, "resume": works})

    ended, parts = run(["server", "resume"], tmp_path / "gpu", monkeypatch, capfd)

    assert ended.returncode == 1
    assert ended.stderr == f"error: failed: server; `{tmp_path / 'gpu'}.md` has the rest\n"
    assert (parts["server"]["error"], parts["resume"]["error"]) == ("no memory", "")
    assert [parts[name]["tables"][0]["title"] for name in parts] == ["begun", "done"]
    assert "Failed: no memory" in (tmp_path / "gpu.md").read_text("utf-8")


def test_without_a_gpu_the_error_names_the_dry_run(monkeypatch, capfd):
    """Without a GPU, a one-line error names the flag to give."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    ended = call(gpu.main, [], monkeypatch, capfd)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: PyTorch finds no GPU; give --device cpu for a dry run\n"


def test_numbers_are_rounded():
    """Large numbers have no decimals, small ones keep three digits, and yes or no replaces true and false."""
    rows = [{"engine": "a", "texts/s": 12345.6, "cosine": 0.99987, "equal": True, "ms": ""}]

    lines = to_markdown({"device": "none"}, {"graphs": Part([Table("title", rows, "note")], 2.0)}).splitlines()

    assert lines[0] == "device none"
    assert [line.replace(" ", "") for line in lines[-3:]] == ["|a|12,346|1|yes||", "", "note"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_run_on_the_cpu(tmp_path, monkeypatch, capfd):
    """Without a GPU, all parts come to their end; runs repeat and resume bit for bit."""
    ended, parts = run([], tmp_path / "gpu", monkeypatch, capfd)

    assert (ended.returncode, list(parts)) == (0, list(gpu.PARTS))
    assert all(part["tables"] and not part["error"] for part in parts.values())
    assert [row["bit-equal"] for row in parts["resume"]["tables"][0]["rows"]] == [True, True]
