"""Descriptions of the tasks, and calls of their models, for model cards. A task without an entry gets a plain card."""

from __future__ import annotations

from dataclasses import dataclass, replace

MASK = "[MASK]"
"""Mask token of BERT's tokenizers."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Description of a task, and calls of its models."""

    sentence: str
    """Description of a model of the task."""
    pipeline_tag: str = ""
    """Task name on Hugging Face's hub and in `transformers.pipeline`."""
    auto_class: str = "AutoModel"
    """Class of transformers."""
    optimum_class: str = ""
    """Class of Optimum for ONNX Runtime; empty if there is none."""
    command: str = ""
    """Arguments of the command `bertline`; empty if it has no operation for the task."""
    python: str = ""
    """Call of the Python client, with `{examples}` and `{model}`; empty if it has no method for the task."""
    examples: str = ""
    """Arguments of the call; empty for a text, or a pair of texts if the model was trained on pairs."""
    mask: str = MASK
    """Mask token of the tokenizer."""


USAGES = {
    "embedding": Usage(
        sentence="An encoder that turns texts into vectors",
        pipeline_tag="feature-extraction",
        optimum_class="ORTModel",
        command='embed {model} "A text to embed."',
        python="print(client.embed({examples}, model={model}))",
        examples='["A text to embed.", "Another text."]',
    ),
    "masked-lm": Usage(
        sentence="An encoder pretrained on masked words",
        pipeline_tag="fill-mask",
        auto_class="AutoModelForMaskedLM",
        optimum_class="ORTModelForMaskedLM",
        command=f'fill-mask {{model}} "The {MASK} is old."',
        python="print([item.token for item in client.fill_mask({examples}, model={model})[0][0].tokens])",
        examples=f'["The {MASK} is old."]',
    ),
    "sparse-embedding": Usage(
        sentence="An encoder that turns texts into weights of the tokens of its vocabulary",
        pipeline_tag="feature-extraction",
        auto_class="AutoModelForMaskedLM",
        command='embed-sparse {model} --tokens "A text to embed."',
        python="print(client.embed_sparse({examples}, model={model}, top_k=5, return_tokens=True)[0].tokens)",
        examples='["A text to embed."]',
    ),
    "token-embedding": Usage(
        sentence="An encoder that turns each token of a text into a vector",
        pipeline_tag="feature-extraction",
        command='embed-tokens {model} "A text to embed."',
        python="print(client.embed_tokens({examples}, model={model})[0].vectors.shape)",
        examples='["A text to embed."]',
    ),
    "classification": Usage(
        sentence="An encoder that labels a text or a pair of texts",
        pipeline_tag="text-classification",
        auto_class="AutoModelForSequenceClassification",
        optimum_class="ORTModelForSequenceClassification",
        command='classify {model} "A text to label."',
        python="print([item.label for item in client.classify({examples}, model={model})])",
    ),
    "regression": Usage(
        sentence="An encoder that gives a text or a pair of texts a number",
        pipeline_tag="text-classification",
        auto_class="AutoModelForSequenceClassification",
        optimum_class="ORTModelForSequenceClassification",
        command='regress {model} "A text."',
        python="print(client.regress({examples}, model={model})[0])",
    ),
    "spans": Usage(
        sentence="An encoder that answers a question with a span of a given text",
        pipeline_tag="question-answering",
        auto_class="AutoModelForQuestionAnswering",
        optimum_class="ORTModelForQuestionAnswering",
        command='answer {model} "A question?" "A text that answers it."',
        python='print(client.answer([("A question?", "A text that answers it.")], model={model})[0].text)',
    ),
    "tagging": Usage(
        sentence="An encoder that tags the words of a text",
        pipeline_tag="token-classification",
        auto_class="AutoModelForTokenClassification",
        optimum_class="ORTModelForTokenClassification",
        command='tag {model} "A text with names."',
        python="print([word.tag for word in client.tag({examples}, model={model}, return_words=True)[0].words])",
        examples='["A text with names."]',
    ),
    "multiple-choice": Usage(
        sentence="An encoder that chooses among endings or answers",
        pipeline_tag="multiple-choice",
        auto_class="AutoModelForMultipleChoice",
        command='choose {model} "A question?" "An answer." "Another answer."',
        python="print(client.choose({examples}, model={model})[0].choice)",
        examples='[("A question?", ["One answer.", "Another answer."])]',
    ),
}


def usage_of(task: str, settings: object = None, mask: str = MASK) -> Usage:
    """Return the usage of a task, or a plain one for a task without an entry.

    Args:
        settings: settings of the model; those of a multi-label model change the call.
        mask: mask token of the tokenizer.
    """
    usage = USAGES.get(task, Usage(sentence=f"An encoder for {task}"))
    usage = replace(
        usage, command=usage.command.replace(MASK, mask), examples=usage.examples.replace(MASK, mask), mask=mask
    )
    if getattr(settings, "is_multi_label", False):
        call = "print([item.selected for item in client.classify({examples}, model={model})])"
        return replace(
            usage, sentence="An encoder that gives a text or a pair of texts any number of labels", python=call
        )
    return usage
