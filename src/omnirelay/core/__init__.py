"""Every rule of leasing, pure and synchronous: `decide` reads, `evolve` writes.

No clock, no randomness, no I/O. Times are integer milliseconds since the epoch, ids come in.
"""
