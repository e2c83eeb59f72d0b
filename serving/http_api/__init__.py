"""HTTP front: the operations of the server for callers without gRPC."""
