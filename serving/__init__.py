"""Model directories -> gRPC: vectors, labels, numbers, choices, answers, entities and masked tokens, on ONNX Runtime.

python -m serving models --port 50051 --metrics-port 9090

A request becomes features (`tasks`), waits in one bounded queue for all models (`queue`), is batched with its
neighbours in length (`scheduler`), runs in ONNX Runtime (`engine`), and is decoded by the code that evaluated it.
"""

import tasks  # noqa: F401  # first: it switches ONNX Runtime's telemetry off
