"""How calls get in and out of a process."""
