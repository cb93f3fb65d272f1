"""What runs leased work: `Worker`, the handlers it calls, and the job each of them gets."""
