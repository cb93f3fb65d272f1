"""Health, introspection, metrics and the API document: what operators and their tools ask a node."""
