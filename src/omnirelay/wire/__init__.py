"""The types of every procedure and event as they travel, and the rules of their JSON."""
