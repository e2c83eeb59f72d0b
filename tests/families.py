"""Checkpoints of every family of encoders, with random weights, made by transformers or `tests.nomic_reference`."""

import functools
import json

import safetensors.torch
import torch
import transformers

from tasks.text.tokenizer_files import TOKENIZER_FILE
from tests.nomic_reference import NomicReference
from tests.toy_tokenizers import byte_bpe, deberta, modernbert, mpnet, unigram, wordpiece
from training.checkpoint.reader import load_model
from training.model.architectures import ARCHITECTURES
from training.model.heads import MODELS

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
ROBERTA = {**SMALL, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}
MODERN = {**SMALL, "max_position_embeddings": 40, "local_attention": 8, "pad_token_id": 0}
NOMIC = {
    **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 40, "layer_norm_epsilon": 1e-12},
    **{"activation_function": "swiglu", "rotary_emb_fraction": 1.0, "rotary_emb_base": 1000},
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "use_rms_norm", "causal"), False),
    **{"pad_vocab_size_multiple": 64, "max_trained_positions": 2048, "rotary_scaling_factor": None},
}
"""Keys of the model's own code on the hub."""
DEBERTA = {**SMALL, "max_position_embeddings": 40, "relative_attention": True}
CONFIGS = {
    "bert": {**SMALL, "max_position_embeddings": 40},
    "bert, one type": {**SMALL, "max_position_embeddings": 40, "type_vocab_size": 1},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40},
    "roberta": {**ROBERTA, "layer_norm_eps": 1e-5},
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": {**SMALL, "max_position_embeddings": 40, "embedding_size": 16},
    "electra, one size": {**SMALL, "max_position_embeddings": 40, "embedding_size": 32},
    "albert": {**SMALL, "max_position_embeddings": 40, "embedding_size": 16, "num_hidden_layers": 3},
    "mpnet": {**SMALL, "max_position_embeddings": 42},
    "modernbert": {**MODERN, "num_hidden_layers": 2},
    "modernbert, all options": {
        **MODERN,
        **{"num_hidden_layers": 5, "global_attn_every_n_layers": 2, "local_rope_theta": 100.0},
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
        **{"decoder_bias": False, "classifier_pooling": "mean", "classifier_activation": "tanh"},
        **{"hidden_activation": "gelu_pytorch_tanh", "norm_eps": 1e-3},
    },
    "nomic_bert": NOMIC,
    "nomic_bert, transformers 5": {
        **{**SMALL, "max_position_embeddings": 40, "type_vocab_size": 2, "hidden_act": "silu", "head_dim": 8},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "nomic_bert, all options": {
        **NOMIC,
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
        **{"activation_function": "geglu", "type_vocab_size": 1, "layer_norm_epsilon": 1e-3, "rotary_emb_base": 50},
        **{"rotary_scaling_factor": 2.0, "max_trained_positions": 12},
    },
    "deberta-v2": {
        **{**DEBERTA, "pos_att_type": "p2c|c2p", "position_buckets": 8, "norm_rel_ebd": "layer_norm"},
        **{"share_att_key": True, "position_biased_input": False, "type_vocab_size": 0},
    },
    "deberta-v2, all options": {
        **{**DEBERTA, "pos_att_type": ["c2p", "p2c"], "share_att_key": False, "max_relative_positions": 16},
        **{"position_biased_input": True, "type_vocab_size": 2, "embedding_size": 16, "layer_norm_eps": 1e-3},
        **{"conv_kernel_size": 3, "conv_act": "gelu", "conv_groups": 2, "pooler_hidden_act": "tanh"},
        **{"hidden_act": "gelu_new", "pooler_dropout": 0.1},
    },
}
"""Config of each family, and of odd members."""
BACKENDS = {
    "roberta": byte_bpe,
    "xlm-roberta": unigram,
    "camembert": unigram,
    "mpnet": mpnet,
    "modernbert": modernbert,
    "deberta-v2": deberta,
}
SETTINGS = {
    "classification": {"labels": ["a", "b", "c"]},
    "tagging": {"labels": ["O", "B-A", "I-A"]},
    "spans": {"max_query_length": 8, "doc_stride": 8},
}
"""Settings of tasks that need some."""


def family(kind):
    """Return the architecture of a config's name."""
    return ARCHITECTURES[kind.partition(",")[0]]


@functools.cache
def vocabulary(kind):
    """Return a tokenizer of the family."""
    return BACKENDS.get(kind.partition(",")[0], wordpiece)()


def create(kind, task, directory):
    """Write a checkpoint with random weights by the reference, and return its network."""
    architecture, backend = family(kind), vocabulary(kind)
    labels = {"num_labels": 1} if task == "regression" else {"num_labels": 3} if MODELS[task].has_labels else {}
    values = {"vocab_size": backend.get_vocab_size(), **CONFIGS[kind], **labels}
    torch.manual_seed(0)
    if architecture.model_type == "nomic_bert":
        model = NomicReference(values, task).eval()
    else:
        config = transformers.AutoConfig.for_model(architecture.model_type, **values)
        model = getattr(transformers, architecture.class_name(MODELS[task].architecture))(config).eval()
    with torch.no_grad():  # LayerNorm and biases are constant in new networks
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    backend.save(str(directory / TOKENIZER_FILE))
    return model


def change_config_file(directory, **changes):
    """Change keys of `config.json`; None removes one."""
    path = directory / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in values.items() if value is not None or key not in changes}
    path.write_text(json.dumps(kept), encoding="utf-8")


def change_weights(directory, change):
    """Change the weights of a checkpoint in its file."""
    weights = safetensors.torch.load_file(directory / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def load_classifier(directory):
    """Return the reference's network of a classifier that was saved here."""
    values = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    is_nomic = values["model_type"] == "nomic_bert"
    reader = NomicReference if is_nomic else transformers.AutoModelForSequenceClassification
    return reader.from_pretrained(directory).eval()


def batch(kind, batch_size=2, length=20):
    """Return random ids, among them ids of special tokens, with padding at the ends of rows."""
    config = CONFIGS[kind]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocabulary(kind).get_vocab_size(), (batch_size, length), generator=generator)
    mask = torch.ones_like(ids)
    padding = config.get("pad_token_id", 1 if kind == "mpnet" else 0)
    for row in range(1, batch_size):
        ids[row, -row * 5 :], mask[row, -row * 5 :] = padding, 0
    types = torch.zeros_like(ids)
    has_types = ("bert", "electra", "albert", "nomic_bert", "deberta-v2")
    if family(kind).model_type in has_types and config.get("type_vocab_size", 2) > 1:
        types[:, length // 2 :] = 1
    return ids, mask, types


def reference_outputs(model, task, ids, mask, types, *, with_gradient=False):
    """Return the outputs of transformers under our names."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.model_type not in ("distilbert", "mpnet", "modernbert"):
        inputs["token_type_ids"] = types
    if task == "multiple-choice":
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.set_grad_enabled(with_gradient):
        found = model(**inputs)
    if task == "multiple-choice":
        return {"logits": found.logits[:, 0]}
    if task == "masked-lm":
        return {"logits": found["prediction_logits" if model.config.model_type == "bert" else "logits"]}
    return {name: found[name] for name in MODEL_OUTPUTS[task]}


MODEL_OUTPUTS = {
    "embedding": ("last_hidden_state",),
    "spans": ("start_logits", "end_logits"),
    **dict.fromkeys(("classification", "regression", "tagging"), ("logits",)),
}


def assert_equal(ours, theirs, mask, task):
    """Compare the outputs of all tokens that are not padding."""
    for name, expected in theirs.items():
        found = ours[name]
        if task in ("embedding", "spans", "tagging", "masked-lm"):
            found, expected = found[mask.bool()], expected[mask.bool()]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def assert_network_equals(reference, directory, kind, task="embedding"):
    """Compare the outputs of the network that a directory holds with those of the reference."""
    inputs = batch(kind)
    with torch.no_grad():
        ours = load_model(directory, task).eval()(*inputs)
    assert_equal(ours, reference_outputs(reference, task, *inputs), inputs[1], task)
