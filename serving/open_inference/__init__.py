"""Open Inference Protocol ("KServe v2"), for clients such as tritonclient.

Its tensors hold texts, which take the same path as requests of `bertline.v1`, or token ids, which go straight to the
graph.
"""
