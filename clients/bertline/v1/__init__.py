"""Messages and stubs of the wire contract, generated from protos/bertline/v1/encoder.proto by `make stubs`."""
