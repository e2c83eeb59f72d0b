"""Operation of the server process: logs, streams, traces, metrics port, memory, open files, systemd."""
