"""Pure pieces: components, tensors, seeds, exact sums, rules and the method interface."""
