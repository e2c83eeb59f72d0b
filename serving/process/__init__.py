"""The server as a process of the operating system: logs, streams, traces, memory, open files, systemd."""
