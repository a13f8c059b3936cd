"""KIP-91: deliveries with a timeout over everything, from the accumulator to the last retry."""
