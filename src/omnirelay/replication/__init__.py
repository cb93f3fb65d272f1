"""The log leaves the node: sinks that follow it, each with a checkpoint, a retry policy and a state of its own."""
