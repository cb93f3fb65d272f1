"""The deciding half of core, one module per kind of command.

Each function reads the state and a command and returns the events it leads to and the answer, or
raises. None of them changes anything.
"""
