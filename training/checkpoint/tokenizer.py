"""Load the tokenizer of a checkpoint from any of its files, and copy it.

`tasks` reads `tokenizer.json` and `vocab.txt`. transformers, which is loaded here and nowhere else in `training`,
converts SentencePiece models, and `vocab.json` with `merges.txt`.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import tokenizers

from tasks import TASKS
from tasks.base import first_line
from tasks.text.json_files import as_json, open_regular, read_optional_json
from tasks.text.sequence_template import lacks_template
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import (
    CONFIG_FILE,
    SAVE_FAST,
    SENTENCEPIECE_FILES,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    check_agreement,
    find_unconverted,
    is_rust_panic,
    read_special_names,
    read_tokenizer_class,
)

_INEXACT = "The sentencepiece tokenizer that you are converting"
"""Start of transformers' warning that a converted tokenizer gives other tokens, as with byte fallback."""
_WITHOUT_FILE = {
    *("Bartpho", "BertGeneration", "BertJapanese", "Bertweet", "BioGpt", "BlenderbotSmall", "ByT5", "CTRL", "Canine"),
    *("Clvp", "CpmAnt", "Dia", "ErnieM", "Esm", "FSMT", "FastSpeech2Conformer", "Flaubert", "GPTNeoXJapanese"),
    *("GPTSanJapanese", "GPTSw3", "Jukebox", "Luke", "M2M100", "MLuke", "Marian", "Mgpstr", "MistralCommon", "MyT5"),
    *("PLBart", "ParakeetCTC", "Perceiver", "Phobert", "ProphetNet", "Rag", "RoCBert", "Siglip", "Speech2Text2"),
    *("Speech2Text", "SpeechT5", "Tapas", "Tapex", "TransfoXL", "Vits", "Wav2Vec2CTC", "Wav2Vec2PhonemeCTC"),
    *("XLMProphetNet", "XLM"),
}
"""Tokenizer classes of transformers, without `Tokenizer`, that do not read `tokenizer.json`."""


def read_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a directory; files of other tokenizers are converted.

    Raises:
        ValueError: naming the file that is missing or broken, or that contradicts another; or if transformers makes
            other tokens or sequences of these files.
    """
    path = find_unconverted(Path(directory))
    if path is None:
        tokenizer, file = Tokenizer.load(directory), Path(directory) / TOKENIZER_FILE
        if file.is_file():
            _check_class(file)
        if lacks_template(tokenizer.backend):
            raise ValueError(
                f"`{file}` has no post_processor, so transformers adds no [CLS] and [SEP] to a text; save it with the "
                "one that the model was trained with (tokenizers: TemplateProcessing)"
            )
        return tokenizer
    backend = _convert(path)
    return Tokenizer(backend, source=str(path), names=read_special_names(Path(directory)))


def _check_class(path: Path) -> None:
    """Refuse a `tokenizer.json` that transformers does not read, as the files next to it name another tokenizer."""
    for file in (path.with_name(TOKENIZER_CONFIG_FILE), path.with_name(CONFIG_FILE)):
        values = read_optional_json(file)
        code, name = values.get("auto_map"), values.get("tokenizer_class")
        code = code.get("AutoTokenizer") if isinstance(code, dict) else code
        kind = str(name).removesuffix("Fast").removesuffix("Tokenizer")
        if code or kind in _WITHOUT_FILE:
            key, value = ("auto_map", code) if code else ("tokenizer_class", name)
            raise ValueError(
                f"`{file}` names another tokenizer ({key} `{as_json(value)}`) than `{path.name}`, which may make other "
                f"tokens; if `{path}` is right, set tokenizer_class to `PreTrainedTokenizerFast` and remove auto_map"
            )
        if name:
            return  # the first one counts


def check_truncation_side(directory: Path, tokenizer: Tokenizer, task: str) -> None:
    """Refuse a tokenizer that cuts off the beginning of long texts, if the task cuts texts.

    Raises:
        ValueError: naming the file.
    """
    if hasattr(TASKS[task].settings_type, "doc_stride"):  # long texts are read in windows
        return
    path = directory / TOKENIZER_CONFIG_FILE
    side, key = read_optional_json(path).get("truncation_side"), "truncation_side"
    if side is None:  # as in transformers
        side, key, path = tokenizer.truncation_side, "truncation.direction", directory / TOKENIZER_FILE
    if side != "right":
        raise ValueError(
            f"unsupported {key} `{side}` in `{path}`: only the end of long texts is cut here; set it to `right`, and "
            "shorten the texts yourself if their end matters"
        )


def copy_tokenizer(source: str | Path, directory: Path) -> None:
    """Copy the tokenizer files of a directory into another; what is converted becomes `tokenizer.json`."""
    for name in TOKENIZER_FILES:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, directory / name)
    if path := find_unconverted(Path(source)):
        _convert(path).save(str(directory / TOKENIZER_FILE))


def _convert(path: Path) -> tokenizers.Tokenizer:
    """Return the fast tokenizer that transformers makes of the files next to a file, if it can do so exactly."""
    directory = path.parent
    for file in (*TOKENIZER_FILES, *SENTENCEPIECE_FILES):
        if (directory / file).is_file():
            open_regular(directory / file).close()  # raises for a pointer of git-lfs
    for file in (TOKENIZER_CONFIG_FILE, CONFIG_FILE):
        read_tokenizer_class(directory / file)
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"`{path}` is converted by transformers, which is missing; pip install 'transformers>=4.57,<4.58'"
        ) from error
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _INEXACT)
            fast = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        # A file would round the scores, and change the digest.
        backend = tokenizers.Tokenizer.from_str(fast.backend_tokenizer.to_str())
    except BaseException as error:  # tokenizers raises bare Exception, or panics
        if not isinstance(error, Exception) and not is_rust_panic(error):
            raise
        raise ValueError(f"transformers cannot convert `{path}` ({first_line(error)}); {SAVE_FAST}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    check_agreement(backend, path, directory / TOKENIZER_CONFIG_FILE)
    return backend
