"""AutoRound: rounding that is learned, a block at a time."""
