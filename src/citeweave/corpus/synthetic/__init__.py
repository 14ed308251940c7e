"""A made-up literature with everything known about it."""
