"""The public test kit: a clock that waits for nobody, a disk that fails, and the conformance suite of logs."""
