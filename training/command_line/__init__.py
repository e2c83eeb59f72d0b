"""command_line."""
