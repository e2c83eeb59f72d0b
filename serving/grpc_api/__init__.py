"""gRPC: interceptor, listening, TLS, health, and the service `bertline.v1.Encoder`."""
