"""gRPC server of model directories: vectors, labels, scores, choices, answers, entities, masked tokens.

python -m serving models --port 50051 --metrics-port 9090

A request becomes features (`tasks`), waits in one bounded queue for all models (`core.queue`), is batched with requests
of similar length (`core.scheduler`), runs in its engine (`core.session`), and is decoded by the same code
as in evaluation (`tasks`).
"""

import tasks  # noqa: F401  # imported first: it switches off ONNX Runtime's telemetry
