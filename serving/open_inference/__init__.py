"""The Open Inference Protocol ("KServe v2") beside our own service, so that tritonclient and its like talk to us.

Texts go the way of `bertline.v1` (`texts`), token ids go straight to the graph (`token_ids`); both become tensors.
"""
