"""What the commands print: tables, numbers, messages, progress and log lines."""
