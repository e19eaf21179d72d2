"""Numbers: tensors, exact sums, encodings and seeds; the same bits in any order."""
