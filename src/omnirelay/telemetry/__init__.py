"""Names of metrics and logs, and what is counted."""
