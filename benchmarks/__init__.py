"""Programs that measure. They print ratios against something run beside them; tests never assert on time."""
