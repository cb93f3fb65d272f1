"""Programs to run and to copy from. `make demo` runs `examples.demo`."""
